"""Merging settings, summary statistics, tables."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field

from atroposlib.utils.cli import (
    adjust_model_defaults,
    extract_namespace,
    get_double_dash_flags,
    get_prefixed_pydantic_model,
    merge_dicts,
)
from atroposlib.utils.display import display_metrics_table, metrics_table
from atroposlib.utils.io import parse_http_response
from atroposlib.utils.metrics import get_std_min_max_avg, percentile


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


def test_later_mappings_win_and_nested_ones_merge():
    merged = merge_dicts({"a": 1, "n": {"x": 1, "y": 2}}, {"n": {"y": 3}}, {"a": None})
    assert merged == {"a": None, "n": {"x": 1, "y": 3}}
    assert merge_dicts({"a": {"x": 1}}, {"a": 2}) == {"a": 2}


def test_a_namespace_is_taken_out_of_flags():
    given = {"env.size": 1, "openai.size": 2}
    assert extract_namespace(given, "env.") == {"size": 1}


def test_adjusted_defaults_make_a_named_subclass():
    adjusted = adjust_model_defaults(Model, {"size": 9, "names": ["z"]})
    assert adjusted.__name__ == "ModelWithDefaults"
    assert issubclass(adjusted, Model)
    assert (adjusted().size, adjusted().names) == (9, ["z"])
    assert Model().size == 3


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


def test_statistics_are_named_and_by_hand():
    metrics = get_std_min_max_avg("t", [1.0, 3.0], {"old": 0})
    assert metrics == {"old": 0, "t_mean": 2.0, "t_std": 1.0, "t_max": 3.0, "t_min": 1.0}
    assert get_std_min_max_avg("t", [], {}) == {}


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1), (0.5, 2), (0.75, 3), (0.95, 4), (1.0, 4)]
)
def test_a_percentile_is_a_value_of_the_data(share, value):
    assert percentile([4, 2, 1, 3], share) == value


def test_the_table_has_a_row_per_metric(capsys):
    rows = metrics_table("task", {"eval/percent_correct": 0.5, "length": 3.0}).splitlines()
    assert rows[2] == "|task|1|none| |percent correct|↑|0.5000|±|0.0000|"
    assert rows[3] == "|||none| |length||3.0000|±|0.0000|"
    display_metrics_table("task", {}, 1.0, 2.5)
    assert "no numeric metrics" in capsys.readouterr().out


async def test_a_bad_http_answer_is_logged_with_its_body_and_raised(caplog):
    class Response:
        status = 500

        def raise_for_status(self):
            raise OSError("bad")

        async def text(self):
            return "the body"

    with pytest.raises(OSError, match="bad"):
        await parse_http_response(Response())
    assert "the body" in caplog.text
