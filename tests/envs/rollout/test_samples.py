"""Samples of a group: second draws, outcomes."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from atroposlib.envs.rollout.causes import is_infrastructure
from atroposlib.envs.rollout.samples import IncompleteGroup, collect_group, outcome_of
from atroposlib.errors import InferenceRefused, InferenceUnavailable, RolloutError, boundary


def sample(score):
    return {"tokens": [1, 2], "masks": [-100, 2], "scores": score}


async def test_a_failed_sample_is_drawn_again_and_its_group_survives():
    drawn = iter([sample(0.0), None, ValueError("judge"), sample(1.0), sample(2.0)])

    async def draw(item):
        value = next(drawn)
        if isinstance(value, Exception):
            raise value
        return value, ["later"]

    group, backlog = await collect_group(draw, "item", 3)
    assert sorted(group["scores"]) == [0.0, 1.0, 2.0]
    assert backlog == ["later"] * 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1"])
async def test_a_sample_with_an_unusable_score_is_drawn_again_and_counted(bad):
    drawn = iter([sample(bad), sample(0.0), sample(None), sample(1.0)])
    failed = Counter()

    async def draw(item):
        value = next(drawn)
        if isinstance(value, Exception):
            raise value
        return value, []

    group, _ = await collect_group(
        draw, "item", 2, lambda end, error=None: failed.update([end])
    )
    assert sorted(group["scores"]) == [0.0, 1.0]
    assert failed == {"judge_error": 1, "no_score": 1}


async def test_second_draws_are_bounded():
    calls = []

    async def never(item):
        calls.append(item)
        return None, []

    with pytest.raises(IncompleteGroup, match="0 of 3 samples have a score"):
        await collect_group(never, "item", 3)
    assert len(calls) == 6  # three samples and three second draws


async def test_other_samples_are_cancelled_when_a_group_is_given_up():
    cancelled = []

    async def draw(item):
        if not cancelled and not draw.hanging:
            draw.hanging = True
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(item)
                raise
        raise ValueError("always")

    draw.hanging = False
    with pytest.raises(IncompleteGroup, match="always"):
        await collect_group(draw, "item", 2)
    assert cancelled == ["item"]


def failure(stage, cause):
    try:
        with boundary("e", 1, stage):
            raise cause
    except RolloutError as error:
        return error


@pytest.mark.parametrize(
    ("error", "outcome", "infrastructure"),
    [
        (InferenceUnavailable("down"), "infra_error", True),
        (InferenceRefused(400, "too long"), "infra_error", False),
        (failure("collect_trajectory", ConnectionResetError()), "infra_error", True),
        (failure("collect_trajectory", TimeoutError()), "timeout", False),
        (failure("collect_trajectory", KeyError("x")), "env_error", False),
        (failure("reward exact", ValueError("x")), "judge_error", False),
        (failure("postprocess_histories", ValueError("x")), "judge_error", False),
    ],
)
def test_a_failure_is_one_of_the_outcomes_of_the_record(error, outcome, infrastructure):
    assert outcome_of(error) == outcome
    assert is_infrastructure(error) is infrastructure
