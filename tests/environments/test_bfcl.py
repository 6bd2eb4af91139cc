"""Function calls of BFCL: rows in the form of its files, and the comparison by table."""

from __future__ import annotations

import json
import zipfile

import pytest

from atroposlib.environments.bfcl import bfcl, match_calls, same, schema, tasks
from atroposlib.envs.function_env.card import play
from atroposlib.errors import ConfigError, DatasetUnavailable

QUESTION = {
    "id": "simple_python_0",
    "question": [[{"role": "user", "content": "The area of a triangle, base 10, height 5?"}]],
    "function": [
        {
            "name": "geometry.area",
            "description": "Area of a triangle.",
            "parameters": {
                "type": "dict",
                "properties": {
                    "base": {"type": "integer"},
                    "height": {"type": "float"},
                    "unit": {"type": "any"},
                },
                "required": ["base", "height"],
            },
        }
    ],
}
AREA = {"geometry.area": {"base": [10], "height": [5, 5.0], "unit": ["units", ""]}}
NONE = {**QUESTION, "id": "irrelevance_0"}


@pytest.fixture
def wheel(tmp_path):
    files = {
        "BFCL_v4_simple_python.json": QUESTION,
        "possible_answer/BFCL_v4_simple_python.json": {
            "id": "simple_python_0",
            "ground_truth": [AREA],
        },
        "BFCL_v4_irrelevance.json": NONE,
    }
    with zipfile.ZipFile(tmp_path / "bfcl.whl", "w") as made:
        for name, row in files.items():
            made.writestr(f"bfcl_eval/data/{name}", json.dumps(row) + "\n")
    with zipfile.ZipFile(tmp_path / "bfcl.whl") as made:
        made.extractall(tmp_path)
    return tmp_path / "bfcl.whl"


def config_of(path, *categories):
    return bfcl.env_config_cls(dataset_path=path and str(path), categories=[*categories])


def call(**arguments):
    named = {"name": "geometry.area", "arguments": arguments}
    return f"<tool_call>{json.dumps(named)}</tool_call>"


def test_rows_are_read_from_the_wheel_and_from_a_folder(wheel):
    found = tasks(config_of(wheel, "simple_python", "irrelevance"))
    folder = wheel.parent / "bfcl_eval" / "data"
    assert tasks(config_of(folder, "simple_python", "irrelevance")) == found
    assert [one["expected"] for one in found] == [[AREA], []]
    parameters = found[0]["tools"][0]["function"]["parameters"]
    assert parameters["type"] == "object"
    assert parameters["properties"]["height"] == {"type": "number"}
    assert parameters["properties"]["unit"] == {}


async def test_a_reply_scores_if_its_calls_are_the_expected_ones(wheel):
    [task] = tasks(config_of(wheel, "simple_python"))
    right = call(base=10, height=5, unit="Units")
    replies = {
        right: 1,
        call(base=10, height=5.0): 1,
        call(base=10, height=4): 0,
        call(base=10): 0,
        call(base=10, height=5, colour="red"): 0,
        call(base=True, height=5): 0,
        right + right: 0,
        "25": 0,
        "": 0,
    }
    for reply, score in replies.items():
        assert (await play(bfcl, task, reply))[0].score == score, reply


async def test_where_no_function_fits_a_reply_without_a_call_scores(wheel):
    [task] = tasks(config_of(wheel, "irrelevance"))
    for reply, score in (("I cannot.", 1), (call(base=1, height=1), 0), ("", 0)):
        assert (await play(bfcl, task, reply))[0].score == score, reply


@pytest.mark.parametrize(
    ("path", "category", "told"),
    [
        (None, "multiple", "pip download"),
        ("nowhere.whl", "multiple", "pip download"),
        ("nowhere", "multiple", "pip download"),
        (None, "simple", "simple_python"),
    ],
)
def test_absent_rows_and_unknown_categories_are_named(path, category, told):
    with pytest.raises((ConfigError, DatasetUnavailable), match=told):
        tasks(config_of(path, category))


@pytest.mark.parametrize(
    ("value", "allowed", "equal"),
    [
        ("New-York, NY", "new york ny", True),
        ("5", 5, False),
        (5, 5.0, True),
        (True, 1, False),
        (1, True, False),
        (None, None, True),
        ([1, "A b"], [1, "ab"], True),
        ([1], [1, 2], False),
        ({"min": 3}, {"min": [3, 4], "max": [9, ""]}, True),
        ({"min": 3}, {"min": [3], "max": [9]}, False),
    ],
)
def test_values_are_compared_as_the_leaderboard_does(value, allowed, equal):
    assert same(value, allowed) is equal


def test_calls_match_in_any_order_even_where_the_first_choice_is_wrong():
    loose, strict = {"f": {"x": [1, 2]}}, {"f": {"x": [1]}}
    assert match_calls([("f", {"x": 1}), ("f", {"x": 2})], [loose, strict])
    assert not match_calls([("f", {"x": 2}), ("f", {"x": 2})], [loose, strict])


def test_a_schema_keeps_what_is_no_type():
    given = {"type": "tuple", "items": [{"type": "dict"}], "enum": ["dict"]}
    assert schema(given) == {"type": "array", "items": [{"type": "object"}], "enum": ["dict"]}
