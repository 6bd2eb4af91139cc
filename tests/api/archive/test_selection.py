"""Rows read by an index, by a walk, or by samples: the same rows as by brute force."""

from __future__ import annotations

import random

import pytest

from atroposlib.api.archive import selection as module
from atroposlib.api.archive.filters import order_of, where
from atroposlib.api.archive.selection import ChosenRows, row_kinds
from tests.api.archive.rollouts import group, index_of, row

GROUPS = 150
GIVEN = [
    {},
    {"env": "math"},
    {"env": "math", "outcome": "ok"},
    {"env": "none"},
    {"finish": "length", "reward": "0.5..1"},
    {"item": "a", "version": "5"},
    {"reward": "..0.5", "version": "3"},
]


@pytest.fixture(scope="module")
def reader():
    chance = random.Random(3)
    index = index_of(
        *(
            group(
                gid,
                [
                    row(
                        chance.choice([0.0, 0.5, 1.0]),
                        version_min=(first := gid // 10),
                        version_max=first + chance.randrange(3),
                        outcome=chance.choice(["ok", "truncated", None]),
                        finish_reason=chance.choice(["stop", "length"]),
                    )
                    for _ in range(3)
                ],
                env=chance.choice(["math", "code", None]),
                item=chance.choice(["a", "b"]),
            )
            for gid in range(1, GROUPS + 1)
        )
    )
    reader = index.reader()
    yield reader
    reader.close()
    index.close()


def by_brute_force(reader, given, order):
    sql = f"SELECT gid, row FROM rollout NOT INDEXED {where(given).clause} {order.sql}"
    return list(reader.execute(sql, where(given).values))


@pytest.mark.parametrize("given", GIVEN, ids=str)
@pytest.mark.parametrize("sort", ["arrived", "-arrived", "-reward", "n_tokens"])
@pytest.mark.parametrize("few", [10_000, 20])
def test_pages_are_those_of_brute_force(reader, monkeypatch, given, sort, few):
    monkeypatch.setattr(module, "FEW", few)
    order, rows, after = order_of({"sort": sort}), [], None
    chosen = ChosenRows(reader, where(given))
    while page := chosen.page(f"gid, row, {order.column}", order, after, 7):
        rows += [(gid, row) for gid, row, _ in page]
        gid, row, value = page[-1]
        after = f"[{value}, {gid}, {row}]"
    assert rows == by_brute_force(reader, given, order)


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_counts_are_exact_up_to_few_and_else_a_bound(reader, monkeypatch, given):
    n = len(by_brute_force(reader, given, order_of({})))
    counted = ChosenRows(reader, where(given)).count()
    assert (counted.n, counted.exact) == (n, True)
    monkeypatch.setattr(module, "FEW", 20)
    counted = ChosenRows(reader, where(given)).count()
    assert counted.n == min(n, 20)
    monkeypatch.setattr(module, "READ_S", -1.0)
    assert ChosenRows(reader, where(given)).count().n <= n


def test_values_of_many_rows_are_a_sample(reader, monkeypatch):
    values, whole = ChosenRows(reader, where({"env": "math"})).values("reward")
    assert whole and len(values) == len(by_brute_force(reader, {"env": "math"}, order_of({})))
    monkeypatch.setattr(module, "FEW", 20)
    monkeypatch.setattr(module, "SAMPLE", 30)
    values, whole = ChosenRows(reader, where({"env": "math"})).values("gid")
    assert (len(values), whole) == (30, False)
    assert max(values) - min(values) > GROUPS / 4


def test_every_kind_of_row_is_found_by_seeks(reader):
    sql = f"SELECT COUNT(DISTINCT {module.KIND}) FROM rollout"
    assert [(len(row_kinds(reader)),)] == list(reader.execute(sql))
