"""A rollout under way: keys by number, the oldest life of the trainer, the task it belongs to."""

from __future__ import annotations

import asyncio

from atroposlib.envs.journal.journalled_rollout import (
    JournalledRollout,
    enter_rollout,
    rollout_here,
)


def test_keys_count_through_the_attempts_of_a_rollout():
    rollout = JournalledRollout("a")
    assert rollout.next_key() == "a-0"
    rollout.repeat()
    assert rollout.next_key() == "a-1"


def test_the_oldest_life_of_the_trainer_counts():
    rollout = JournalledRollout("a")
    for incarnation in (None, 5, 3, None, 4):
        rollout.note_incarnation(incarnation)
    assert rollout.incarnation == 3


async def test_a_rollout_is_that_of_its_task_and_its_children():
    async def child():
        return rollout_here()

    async def task(rollout):
        enter_rollout(rollout)
        return await asyncio.create_task(child())

    rollouts = [JournalledRollout("a"), JournalledRollout("b"), None]
    assert await asyncio.gather(*map(task, rollouts)) == rollouts
    assert rollout_here() is None
