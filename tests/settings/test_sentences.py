"""Nearest names, and sentences of pydantic's errors."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from atroposlib.settings.sentences import did_you_mean, settings_error


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("--prot", ["--host", "--port"], "--port"),
        ("--learning-rate", ["--lr", "--loss"], "--lr"),
        ("group_size", ["env", "env.group_size"], "env.group_size"),
        ("optim.seed", ["seed", "run.seed", "optim.lr"], "seed or run.seed"),
        ("enviroment", ["env", "openai"], "env"),
        ("env.grop", ["env", "env.group"], "env.group"),
    ],
)
def test_the_nearest_name_is_the_one_meant(word, known, meant):
    assert did_you_mean(word, known) == f"; did you mean {meant}?"


@pytest.mark.parametrize("word", ["openai.weight", "nonsense", ""])
def test_a_distant_name_has_no_hint(word):
    assert did_you_mean(word, ["env", "openai", "env.seed", "--port"]) == ""


class Model(BaseModel, extra="forbid"):
    count: int = Field(1, ge=1)
    share: float = Field(1.0, le=1)
    mode: Literal["a", "b"] = "a"
    names: list[str] = Field(["x"], min_length=1)
    api_key: str = ""
    inner: dict[str, int] = {}
    even: int = 0

    @field_validator("even")
    @classmethod
    def _require_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("should be even" if value > 2 else "odd numbers are refused")
        return value


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"count": "x"}, "count should be a whole number, not 'x'"),
        ({"count": 1.5}, "count should be a whole number, not 1.5"),
        ({"count": 0}, "count should be at least 1, not 0"),
        ({"share": 2}, "share should be at most 1, not 2"),
        ({"mode": "c"}, "mode should be 'a' or 'b', not 'c'"),
        ({"names": []}, "names should have at least 1 item, not []"),
        ({"names": [1]}, "names.0 should be text, not 1"),
        ({"inner": 3}, "inner should be a mapping, not 3"),
        ({"api_key": 3}, "api_key should be text"),
        ({"even": 3}, "even should be even"),
        ({"even": 1}, "even: odd numbers are refused"),
        ({"cuont": 3}, "cuont is no setting; did you mean count?"),
    ],
)
def test_each_problem_is_a_sentence_with_its_place(values, sentence):
    with pytest.raises(ValidationError) as caught:
        Model(**values)
    error = settings_error(caught.value, "run.yaml:3: {}".format, Model.model_fields)
    assert str(error) == f"run.yaml:3: {sentence}"
    assert str(settings_error(caught.value, str, [], "a.")).startswith("a.")


def test_an_error_of_a_whole_section_has_the_name_of_the_section():
    class Ordered(BaseModel):
        @model_validator(mode="after")
        def _ascends(self):
            raise ValueError("the span must ascend")

    with pytest.raises(ValidationError) as caught:
        Ordered()
    error = settings_error(caught.value, str, above="env.")
    assert str(error) == "env: the span must ascend"
