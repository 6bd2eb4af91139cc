"""Bounded concurrency and cancellation."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from atroposlib.utils.gathering import gather_bounded, in_one_task


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


async def test_a_manager_is_entered_and_left_by_one_task_which_errors_of_the_block_do_not_reach():
    seen = []

    @asynccontextmanager
    async def manager():
        seen.append(asyncio.current_task())
        try:
            yield "value"
        except BaseException as error:
            seen.append(error)
            raise
        seen.append(asyncio.current_task())

    with pytest.raises(KeyError):
        async with in_one_task(manager()) as value:
            assert value == "value"
            raise KeyError("of the block")
    assert seen[0] is seen[1] is not asyncio.current_task()


async def test_a_manager_that_fails_raises_where_it_is_entered_or_left():
    @asynccontextmanager
    async def manager(entering):
        if entering:
            raise OSError("entering")
        yield
        raise OSError("leaving")

    for entering in (True, False):
        with pytest.raises(OSError, match="entering" if entering else "leaving"):
            async with in_one_task(manager(entering)):
                assert not entering
