"""Fields as flags: their types, their help, and the validation of their texts."""

from __future__ import annotations

import argparse
from enum import Enum
from typing import Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field

from atroposlib.errors import ConfigError
from atroposlib.settings.fields import add_flag, flag_of, type_name, validate_as
from atroposlib.settings.merge import Settings


class Colour(Enum):
    RED = "red"


class Model(BaseModel):
    batch_size: int = Field(2, description="rows, 100% of them")
    is_on: bool = Field(False, description="a switch")
    words: list[str] = Field([], description="several")
    name: str = Field(description="needed")


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (int, "INT"),
        (Optional[float], "FLOAT"),
        (str | list[str] | None, "TEXT|JSON"),
        (Literal["a", "b"] | None, "a|b"),
        (Colour, "red"),
        (dict[str, int], "JSON"),
        (Model, "JSON"),
        (Any, "JSON|TEXT"),
        (complex, "TEXT"),
    ],
)
def test_a_type_has_one_name(annotation, name):
    assert type_name(annotation) == name


def test_flags_take_text_that_the_model_converts():
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    for name, field in Model.model_fields.items():
        aliases = ("--rows",) if name == "batch_size" else ()
        add_flag(parser, name, field, *aliases, note="BATCH_SIZE" if aliases else "")
    given = vars(parser.parse_args(["--rows", "3", "--no-is-on", "--words", "a", "b"]))
    assert given == {"batch_size": "3", "is_on": False, "words": ["a", "b"]}
    page = " ".join(parser.format_help().split())
    assert "rows, 100% of them (2; BATCH_SIZE)" in page and "--batch-size INT" in page
    assert validate_as(Model, Settings({**given, "name": "n"})).batch_size == 3


def test_a_problem_has_the_place_of_its_setting_or_says_how_to_give_it():
    settings = Settings({"batch_size": "x"}, {"batch_size": flag_of("batch_size")})
    sentence = r"^--batch-size should .*, not 'x'; --name \(or name=...\) is required$"
    with pytest.raises(ConfigError, match=sentence):
        validate_as(Model, settings)
    with pytest.raises(ConfigError, match="run.yaml: name is required"):
        validate_as(Model, Settings(), "run.yaml: {}".format)
