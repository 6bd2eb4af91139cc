"""Merging settings: prefixed models, nested mappings, namespaces, flags."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field

from atroposlib.errors import ConfigError
from atroposlib.utils.cli import (
    adjust_model_defaults,
    extract_namespace,
    get_double_dash_flags,
    get_prefixed_pydantic_model,
    merge_dicts,
)


class Model(BaseModel):
    size: int = Field(default=3, ge=1, description="how many")
    names: list[str] = Field(default_factory=lambda: ["a"])


def test_a_prefixed_model_keeps_type_description_default_and_limits():
    prefixed = get_prefixed_pydantic_model(Model, "env.")
    field = prefixed.model_fields["env.size"]
    assert (field.annotation, field.description, field.default) == (int, "how many", 3)
    assert getattr(prefixed(), "env.names") == ["a"]
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        prefixed(**{"env.size": 0})


def test_later_mappings_override_earlier_ones_and_nested_mappings_merge():
    merged = merge_dicts({"a": 1, "n": {"x": 1, "y": 2}}, {"n": {"y": 3}}, {"a": None})
    assert merged == {"a": None, "n": {"x": 1, "y": 3}}
    assert merge_dicts({"a": {"x": 1}}, {"a": 2}) == {"a": 2}


def test_a_namespace_is_extracted_from_the_flags():
    given = {"env.size": 1, "openai.size": 2}
    assert extract_namespace(given, "env.") == {"size": 1}


def test_adjusted_defaults_make_a_named_subclass():
    adjusted = adjust_model_defaults(Model, {"size": 9, "names": ["z"]})
    assert adjusted.__name__ == "ModelWithDefaults"
    assert issubclass(adjusted, Model)
    assert (adjusted().size, adjusted().names) == (9, ["z"])
    assert Model().size == 3
    with pytest.raises(ConfigError, match="no field 'sise'"):
        adjust_model_defaults(Model, {"sise": 1})


def test_defaults_may_come_from_an_instance_and_keep_the_models_inside_it():
    class Outer(BaseModel):
        inner: Model = Model()

    adjusted = adjust_model_defaults(Outer, Outer(inner=Model(size=7)))
    assert adjusted().inner == Model(size=7)


def test_flags_may_have_negative_values():
    words = ["serve", "--a", "-1", "--b=-2", "--c", "--d", "None", "--e", "x=y", "--f=a=b"]
    assert get_double_dash_flags(words) == {
        "a": "-1",
        "b": "-2",
        "c": True,
        "d": None,
        "e": "x=y",
        "f": "a=b",
    }
    assert get_double_dash_flags(["--n", "-1e-5", "--v", "-h", "--w", "-inf"]) == {
        "n": "-1e-5",
        "v": True,
        "w": "-inf",
    }
