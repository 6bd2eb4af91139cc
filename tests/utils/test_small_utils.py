"""Merging settings, summary statistics, tables."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from pydantic import BaseModel, Field

from atroposlib.errors import ConfigError
from atroposlib.utils.best_of_n_selection import select_best_index
from atroposlib.utils.cli import (
    adjust_model_defaults,
    extract_namespace,
    get_double_dash_flags,
    get_prefixed_pydantic_model,
    merge_dicts,
)
from atroposlib.utils.display import display_metrics_table, metrics_table
from atroposlib.utils.gathering import gather_bounded
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


def test_statistics_are_named_and_by_hand():
    metrics = get_std_min_max_avg("t", [1.0, 3.0], {"old": 0})
    assert metrics == {"old": 0, "t_mean": 2.0, "t_std": 1.0, "t_max": 3.0, "t_min": 1.0}
    assert get_std_min_max_avg("t", [], {}) == {}
    assert get_std_min_max_avg("t", np.array([2, 2]), {})["t_std"] == 0.0


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1), (0.5, 2), (0.75, 3), (0.95, 4), (1.0, 4)]
)
def test_a_percentile_is_a_value_of_the_data(share, value):
    assert percentile([4, 2, 1, 3], share) == value


def test_the_table_has_a_row_per_metric(capsys):
    rows = metrics_table("task", {"eval/percent_correct": 0.5, "length": 3.0}).splitlines()
    assert rows[2] == "|task|1|none| |percent correct|↑|0.5000|±|0.0000|"
    assert rows[3] == "|||none| |length||3.0000|±|0.0000|"
    odd = metrics_table(
        "t", {"exact": np.float32(0.25), "word": "x", "none": None}
    ).splitlines()
    assert [row.split("|")[6:8] for row in odd[2:]] == [
        ["", "0.2500"],
        ["", "x"],
        ["", "None"],
    ]
    display_metrics_table("task", {}, 1.0, 2.5)
    assert "task: no metrics" in capsys.readouterr().out


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


async def test_a_body_that_cannot_be_read_does_not_hide_the_bad_status(caplog):
    class Response:
        status = 502

        def raise_for_status(self):
            raise OSError("bad gateway")

        async def text(self):
            raise ConnectionResetError("gone")

    with pytest.raises(OSError, match="bad gateway"):
        await parse_http_response(Response())
    assert "502" in caplog.text and "gone" in caplog.text


async def test_a_good_http_answer_is_its_json():
    class Response:
        def raise_for_status(self):
            pass

        async def json(self):
            return {"a": 1}

    assert await parse_http_response(Response()) == {"a": 1}


@pytest.mark.parametrize(
    ("primary", "secondary", "options", "best"),
    [
        ([1.0, 3.0, 2.0], [0, 0, 0], {}, 1),
        ([1.0, 3.0, 3.0], [0, 9, 5], {}, 2),
        ([3.0, 3.0], [5, 5], {}, 0),
        ([1.0, 3.0, 1.0], [2, 0, 1], {"primary_higher_is_better": False}, 2),
        ([3.0, 3.0], [5, 9], {"secondary_lower_is_better": False}, 1),
        (np.array([1, 2]), np.array([0, 0]), {}, 1),
    ],
)
def test_the_best_is_found_and_ties_are_broken(primary, secondary, options, best):
    assert select_best_index(primary, secondary, **options) == best


@pytest.mark.parametrize(
    ("primary", "secondary"), [([], []), ([1.0], []), ([float("nan")], [1.0])]
)
def test_there_is_no_best_of_nothing_or_of_what_cannot_be_compared(primary, secondary):
    with pytest.raises(ValueError):
        select_best_index(primary, secondary)


async def test_work_is_bounded_in_order_and_ends_with_its_first_failure():
    under_way, most, ended = 0, 0, []

    async def work(item):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            if item == "bad":
                raise KeyError(item)
            await asyncio.sleep(60 if item == "slow" else 0)
            return item * 2
        finally:
            under_way -= 1
            ended.append(item)

    assert await gather_bounded(range(7), work, 3) == [0, 2, 4, 6, 8, 10, 12]
    assert most == 3
    ended.clear()
    with pytest.raises(KeyError, match="bad"):
        await gather_bounded(["slow", "bad", "never"], work, 2)
    assert under_way == 0 and "slow" in ended
