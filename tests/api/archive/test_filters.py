"""Filters and pages, against brute force."""

from __future__ import annotations

import random

import pytest

from atroposlib.api.archive.explorer import Explorer
from atroposlib.api.archive.filters import envs_called, name_of_label, order_of, where
from atroposlib.errors import ConfigError
from atroposlib.wire.explore import RolloutRow
from tests.api.archive.rollouts import group, index_of, row


@pytest.fixture(scope="module")
def explorer():
    chance = random.Random(3)
    groups = [
        group(
            gid,
            [
                row(
                    chance.choice([0.0, 0.5, 1.0]),
                    chance.randrange(1, 50),
                    version_min=chance.randrange(4),
                    version_max=chance.randrange(4, 8),
                    outcome=chance.choice(["ok", "truncated", None]),
                    finish_reason=chance.choice(["stop", "length"]),
                )
                for _ in range(4)
            ],
            env=chance.choice(["math", "code", None]),
            item=chance.choice(["a", "b"]),
            state=chance.choice(["pending", "dropped"]),
        )
        for gid in range(1, 60)
    ]
    index = index_of(*groups)
    yield Explorer(index, None)
    index.close()


def pages(explorer, **given):
    rows, after = [], {}
    while True:
        page = explorer.rollouts(given | after)
        rows += page.rows
        if page.next is None:
            assert page.counted.exact
            assert page.counted.n >= len(rows)
            return rows
        after = {"after": page.next}


FILTERS = [
    ({"env": "math"}, lambda r: r.env == "math"),
    ({"state": "dropped", "item": "a"}, lambda r: r.state == "dropped" and r.item == "a"),
    ({"outcome": "truncated"}, lambda r: r.outcome == "truncated"),
    (
        {"finish": "length", "reward": "0.5..1"},
        lambda r: r.finish_reason == "length" and r.reward >= 0.5,
    ),
    ({"reward": "..0.5"}, lambda r: r.reward <= 0.5),
    ({"reward": "1"}, lambda r: r.reward == 1),
    ({"version": "3"}, lambda r: r.version_min <= 3 <= r.version_max),
    ({"step": "1..2"}, lambda r: False),
    ({"diff_min": "0"}, lambda r: False),
]


@pytest.mark.parametrize(("given", "passes"), FILTERS, ids=[str(f[0]) for f in FILTERS])
@pytest.mark.parametrize("sort", ["arrived", "-arrived", "reward", "-reward", "n_tokens"])
def test_pages_of_a_filter_are_the_rows_that_pass_in_order(explorer, given, passes, sort):
    found = pages(explorer, **given, sort=sort, limit="7")

    def key(r):
        return (r.gid if column == "arrived" else getattr(r, column), r.gid, r.row)

    everything = [r for gid in range(1, 60) for r in explorer._rows(gid)]
    column = sort.removeprefix("-")
    expected = sorted(filter(passes, everything), key=key, reverse=sort.startswith("-"))
    assert [(r.gid, r.row) for r in found] == [(r.gid, r.row) for r in expected]


def test_the_newest_group_is_first_unless_asked_otherwise(explorer):
    assert explorer.rollouts({}).rows[0].gid == 59


def test_a_value_is_never_part_of_the_sql():
    found = where({"env": "x' OR 1=1 --", "item": "%"})
    assert found.clause == "WHERE env IN (?) AND item = ?"
    assert found.values == ("x' OR 1=1 --", "%")


@pytest.mark.parametrize(
    "given",
    [
        {"env_name": "math"},
        {"step": "1...2"},
        {"step": "1.5"},
        {"reward": "nan.."},
        {"reward": "a..b"},
        {"version": "99999999999999999999"},
        {"limit": "0"},
        {"limit": "501"},
        {"sort": "gid; DROP TABLE rollout"},
        {"after": "x"},
        {"after": '["a", 1, 2]'},
    ],
)
def test_an_unknown_filter_or_value_is_rejected(explorer, given):
    with pytest.raises(ConfigError):
        explorer.rollouts(given)


def test_rows_without_the_column_of_an_order_are_not_in_it(explorer):
    assert explorer.rollouts({"sort": "-diff_max"}).rows == []
    assert order_of({"sort": "-diff_max"}).descending


def test_a_page_may_end_in_a_dropped_group_whose_id_is_negative():
    order = order_of({})
    key = order.key(RolloutRow(gid=-3, row=1))
    assert order.start(where({}), key).values == (-3, 1)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("sums", "sums"),
        ("sums_0", "sums"),
        ("sums_12", "sums"),
        ("sums_long_0", "sums_long"),
        ("sums_2_0", "sums_2"),
        ("7", "7"),
        ("", ""),
    ],
)
def test_a_label_has_its_name_and_a_number(label, name):
    assert name_of_label(label) == name


def test_a_name_stands_for_its_numbered_environments():
    envs = ["sums", "sums_1", "sums_12", "sums_long_0", "sum"]
    assert envs_called("sums", envs) == ["sums", "sums_1", "sums_12"]
    assert envs_called("sums_1", envs) == ["sums_1"] and envs_called("su.s", envs) == []
