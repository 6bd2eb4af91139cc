"""Rollout pool: cancellation, retries, counts."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from atroposlib.envs.rollout.pool import RolloutStatus, RolloutTask, WorkerPool, run_rollout
from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.errors import (
    InferenceUnavailable,
    RolloutApiUnavailable,
    RolloutError,
    boundary,
)

GROUP = {"tokens": [[1]], "masks": [[1]], "scores": [1.0]}


class Script:
    """An environment whose rollouts end as the test sets."""

    def __init__(self, collect=None, post=None):
        self.collect, self.post = collect, post
        self.cleaned = 0
        self.config = BaseEnvConfig(group_size=1)

    def label(self):
        return "script"

    async def collect_trajectories(self, item):
        return await self.collect(item) if self.collect else (GROUP, [])

    async def postprocess_histories(self, collected):
        return await self.post(collected) if self.post else collected

    async def cleanup(self):
        self.cleaned += 1
        if self.cleanup_fails:
            raise OSError("sandbox")

    cleanup_fails = False


def pool_of(env, deliver=None, on_end=None, **settings):
    delivered = []

    async def keep(groups, item):
        delivered.append((item, groups))
        return len(groups)

    changes = {"worker_timeout": 0, **settings}
    env.config = env.config.model_copy(update=changes)
    return WorkerPool(env, deliver or keep, on_end=on_end), delivered


async def fails(item):
    raise KeyError("answer")


@pytest.mark.parametrize(
    ("stage", "env"),
    [
        ("collect_trajectories", Script(collect=fails)),
        ("postprocess_histories", Script(post=fails)),
    ],
)
async def test_a_failure_names_environment_item_and_stage(stage, env):
    outcome = await run_rollout(env, {"id": 3})
    assert outcome.status is RolloutStatus.FAILED
    assert isinstance(outcome.error, RolloutError)
    assert (outcome.error.env, outcome.error.stage) == ("script", stage)
    assert "{'id': 3}" in outcome.error.item


async def test_errors_of_the_library_pass_unchanged():
    async def no_server(item):
        raise InferenceUnavailable("no server")

    outcome = await run_rollout(Script(collect=no_server), 1)
    assert isinstance(outcome.error, InferenceUnavailable)


async def test_none_entries_of_a_list_of_groups_are_skipped():
    async def several(item):
        return [GROUP, None, GROUP], ["later"]

    outcome = await run_rollout(Script(collect=several), 1)
    assert (outcome.status, outcome.groups, outcome.backlog) == (
        RolloutStatus.SCORED,
        [GROUP, GROUP],
        ["later"],
    )


async def test_scores_may_be_an_array():
    async def collect(item):
        return {**GROUP, "tokens": [[1], [2]], "scores": np.array([0.0, 1.0])}, []

    outcome = await run_rollout(Script(collect=collect), "item")
    assert outcome.status is RolloutStatus.SCORED


async def test_nothing_returned_is_empty_and_not_a_failure():
    async def nothing(item):
        return None, []

    outcome = await run_rollout(Script(collect=nothing), 1)
    assert outcome.status is RolloutStatus.EMPTY


async def test_a_rollout_that_takes_too_long_is_a_counted_outcome():
    async def forever(item):
        await asyncio.Event().wait()

    env = Script(collect=forever)
    pool, delivered = pool_of(env, worker_timeout=0.01)
    pool.start(RolloutTask("slow"))
    await pool.drain(60)
    assert pool.counts["timed_out"] == 1
    assert (delivered, env.cleaned) == ([], 1)


async def test_a_timeout_inside_user_code_is_a_failure_of_that_code():
    async def times_out(item):
        raise asyncio.TimeoutError

    outcome = await run_rollout(Script(collect=times_out), 1)
    assert outcome.status is RolloutStatus.FAILED


async def test_a_failed_item_is_tried_again_a_bounded_number_of_times():
    pool, _ = pool_of(Script(collect=fails), max_item_retries=2)
    job = RolloutTask("item")
    while job is not None:
        pool.start(job)
        await pool.drain(60)
        job = pool.next_waiting()
    assert pool.counts["failed"] == 3
    assert (pool.counts["retried"], pool.counts["gave_up"]) == (2, 1)
    assert pool.consecutive_errors == pool.consecutive_empty_items == 3


async def test_waiting_items_come_back_oldest_first_and_retries_before_backlog():
    pool, _ = pool_of(Script())
    pool.backlog.extend(["a", "b"])
    pool.retries.append(RolloutTask("failed"))
    assert [pool.next_waiting().item for _ in range(3)] == ["failed", "a", "b"]
    assert pool.next_waiting() is None


async def test_cancelling_does_not_stop_running_sends():
    sending, may_finish = asyncio.Event(), asyncio.Event()
    delivered = []

    async def slow_send(groups, item):
        sending.set()
        await may_finish.wait()
        delivered.append(item)
        return 1

    async def hang_on_second(item):
        if item == "second":
            await asyncio.Event().wait()
        return GROUP, []

    pool, _ = pool_of(Script(collect=hang_on_second), slow_send)
    pool.start(RolloutTask("first"))
    pool.start(RolloutTask("second"))
    await sending.wait()
    assert pool.cancel_unfinished() == ["second"]
    may_finish.set()
    assert await pool.drain(60) == 0
    assert delivered == ["first"]
    assert pool.counts["kept"] == 1


async def test_a_drain_is_bounded_and_returns_the_number_cancelled():
    async def stuck(groups, item):
        await asyncio.Event().wait()

    pool, _ = pool_of(Script(), stuck)
    pool.start(RolloutTask("x"))
    assert await pool.drain(0.01) == 1
    assert pool.busy == 0


async def test_an_error_of_delivery_is_stored_as_fatal():
    async def broken(groups, item):
        raise RolloutApiUnavailable("send")

    pool, _ = pool_of(Script(), broken)
    pool.start(RolloutTask("x"))
    await pool.wait_for_change(60)
    assert isinstance(pool.fatal, RolloutApiUnavailable)


async def test_a_hook_that_fails_before_the_send_is_a_failure_of_its_item_only():
    async def broken(groups, item):
        with boundary("script", item, "handle_send_to_api"):
            raise KeyError("teacher")

    pool, _ = pool_of(Script(), broken, max_item_retries=1)
    pool.start(RolloutTask("x"))
    await pool.drain(60)
    assert pool.fatal is None and "teacher" in str(pool.last_error)
    assert pool.consecutive_mistakes == 1 and pool.next_waiting().item == "x"


async def test_a_cleanup_that_fails_costs_no_group():
    env = Script()
    env.cleanup_fails = True
    pool, delivered = pool_of(env)
    pool.start(RolloutTask("x"))
    await pool.drain(60)
    assert pool.fatal is None and pool.counts["cleanup_failed"] == 1
    assert delivered == [("x", [GROUP])]


async def test_a_cancelled_rollout_is_counted_and_cleaned_up():
    async def forever(item):
        await asyncio.Event().wait()

    env, ends = Script(collect=forever), []
    pool, _ = pool_of(env, on_end=lambda outcome, item: ends.append(outcome))
    pool.start(RolloutTask("x"))
    await asyncio.sleep(0)
    pool.cancel_unfinished()
    await pool.drain(60)
    assert pool.counts["cancelled"] == env.cleaned == 1
    assert [(end.status, end.samples_failed) for end in ends] == [
        (RolloutStatus.CANCELLED, "cancelled")
    ]


async def test_an_absent_server_is_not_counted_as_a_mistake():
    async def no_server(item):
        raise InferenceUnavailable("down")

    pool, _ = pool_of(Script(collect=no_server), max_item_retries=100)
    for _ in range(3):
        pool.start(RolloutTask("x"))
        await pool.drain(60)
    assert (pool.consecutive_errors, pool.consecutive_mistakes) == (3, 0)
    assert pool.servers_gone_since is not None
    back = Script()
    pool.env = back
    pool.start(RolloutTask("x"))
    await pool.drain(60)
    assert pool.consecutive_errors == 0 and pool.servers_gone_since is None


async def test_a_short_group_is_retried_and_reported_as_short():
    async def two_of_three(item):
        rows = {"tokens": [[1]] * 3, "masks": [[1]] * 3, "scores": [0.0, None, 1.0]}
        return rows, []

    env, ends = Script(collect=two_of_three), []
    env.config = BaseEnvConfig(group_size=3)
    pool, delivered = pool_of(env, on_end=lambda outcome, item: ends.append(outcome))
    pool.start(RolloutTask("x"))
    await pool.drain(60)
    assert ends[0].status is RolloutStatus.SHORT and ends[0].short == [
        "2 of 3 sequences have a score"
    ]
    assert delivered == [] and pool.next_waiting().attempts == 1
    assert pool.consecutive_mistakes == 0


async def test_rows_without_a_score_that_are_not_needed_are_left_out():
    async def one_more(item):
        return {"tokens": [[1], [2]], "masks": [[1], [2]], "scores": [None, 1.0]}, []

    outcome = await run_rollout(Script(collect=one_more), 1)
    assert [group["tokens"] for group in outcome.groups] == [[[2]]]


async def test_of_a_short_and_a_whole_group_the_whole_one_is_kept():
    async def both(item):
        return [GROUP, {**GROUP, "scores": [None]}], []

    outcome = await run_rollout(Script(collect=both), 1)
    assert (outcome.status, outcome.groups) == (RolloutStatus.SCORED, [GROUP])
    assert outcome.short == ["0 of 1 sequences have a score"]
