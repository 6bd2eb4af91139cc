"""Baselines of roles by hand: two sides of a game, their order in time, and a resume."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from example_trainer.advantage import estimators
from example_trainer.advantage.prepare import prepare_parts
from example_trainer.advantage.roles import RoleBaselines
from example_trainer.data.rows import role_of
from example_trainer.settings.loss import AdvantageSettings
from tests.trainer.rows import row


def test_baselines_of_two_sides_by_hand():
    """X: 1, 1, -1 has mean 1/3; O: -1 has -1. Then X gets 0.5 * 1/3 + 0.5 * 0 = 1/6."""
    baselines = RoleBaselines()
    first = baselines.take(["X", "O", "X", "X"], [1.0, -1.0, 1.0, -1.0], 0.5)
    assert first == pytest.approx([1 / 3, -1.0, 1 / 3, 1 / 3])
    second = baselines.take(["O", "X", "X"], [1.0, 1.0, -1.0], 0.5)
    assert second == pytest.approx([-1.0, 1 / 3, 1 / 3])
    # O: 0.5 * -1 + 0.5 * 1 = 0
    assert baselines.metrics() == pytest.approx({"baseline/O": 0.0, "baseline/X": 1 / 6})


def test_side_that_usually_wins_is_not_praised_for_it():
    """Group mean: +1 and -1 for every game. By role: 0 for the usual outcome of each side."""
    cfg, baselines = AdvantageSettings(advantage="role", role_decay=0.5), RoleBaselines()
    for _ in range(2):
        advantages = estimators.compute(
            [1.0, -1.0, 1.0, -1.0],
            ["game"] * 4,
            cfg,
            roles=["X", "O", "X", "O"],
            baselines=baselines,
        )
    assert advantages == [0.0] * 4
    by_group = estimators.compute([1.0, -1.0, 1.0, -1.0], ["game"] * 4)
    assert by_group == [1.0, -1.0, 1.0, -1.0]
    upset = estimators.compute(
        [-1.0, 1.0], ["game"] * 2, cfg, roles=["X", "O"], baselines=baselines
    )
    assert upset == [-2.0, 2.0]


def test_batch_does_not_enter_its_own_baseline():
    baselines = RoleBaselines()
    baselines.take(["X"], [0.0], 0.9)
    assert baselines.take(["X", "X"], [1.0, 1.0], 0.9) == [0.0, 0.0]
    assert baselines.take(["X"], [0.0], 0.9) == pytest.approx([0.1])


BATCH = st.lists(st.tuples(st.sampled_from("XO"), st.floats(-10, 10)), max_size=8)


@given(st.lists(BATCH, min_size=2, max_size=6), st.integers(0, 5), st.floats(0, 0.99))
def test_resume_is_equal_to_the_bit(batches, cut, decay):
    def run(baselines, batches):
        return [baselines.take([r for r, _ in b], [x for _, x in b], decay) for b in batches]

    straight = run(RoleBaselines(), batches)
    before = RoleBaselines()
    head = run(before, batches[:cut])
    after = RoleBaselines()
    after.restore(json.loads(json.dumps(before.state())))
    assert head + run(after, batches[cut:]) == straight


def test_roles_of_environments_are_apart_and_scores_of_rows_are_shifted_by_theirs(config):
    rows = [
        row([1], [2], reward=1.0, environment="chess", role="white"),
        row([1], [3], reward=0.0, environment="go", role="white"),
        row([1], [4], reward=-1.0, environment="chess", role="black"),
    ]
    baselines = RoleBaselines()
    cfg = config(advantage="role", role_decay=0.5)
    prepare_parts(rows, cfg, 0, baselines=baselines)
    names = ["baseline/chess/black", "baseline/chess/white", "baseline/go/white"]
    assert sorted(baselines.metrics()) == names
    lost = row([1], [2], reward=0.0, environment="chess", role="white")
    prepared = prepare_parts([lost], cfg, 0, baselines=baselines)
    assert prepared.advantages_R_T == [[-1.0]]


@pytest.mark.parametrize(
    ("metadata", "role"),
    [
        ({}, ""),
        ({"endpoint": "black"}, "black"),
        ({"endpoint": "black", "rows": [{}, {"role": "X"}]}, "X"),
        ({"rows": [{"role": "O"}]}, ""),
        ({"rows": "odd"}, ""),
    ],
)
def test_role_is_a_fact_of_the_row_else_the_endpoint(metadata, role):
    assert role_of(metadata, 1) == role
