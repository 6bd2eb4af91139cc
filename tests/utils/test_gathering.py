"""Bounded concurrency and cancellation."""

from __future__ import annotations

import asyncio

import pytest

from atroposlib.utils.gathering import gather_bounded


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
