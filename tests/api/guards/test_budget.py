"""Budgets that requests share: first come first served, and exact after every end."""

from __future__ import annotations

import asyncio

import pytest

from atroposlib.api.guards.budget import BudgetExceeded, FairBudget, Reservation


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_memory_is_granted_in_arrival_order_also_after_a_cancellation():
    room = FairBudget(10, 60.0, "full")
    order = []

    async def hold(name, size, until):
        with Reservation(room) as claim:
            await claim.grow_to(size)
            order.append(name)
            await until.wait()

    first, rest = asyncio.Event(), asyncio.Event()
    holder = asyncio.create_task(hold("a", 10, first))
    await settled()
    waiting = [
        asyncio.create_task(hold(n, s, rest)) for n, s in (("b", 8), ("c", 1), ("d", 10))
    ]
    await settled()
    assert order == ["a"]
    waiting[0].cancel()
    await settled()
    first.set()
    await settled()
    assert order == ["a", "c"]
    rest.set()
    await asyncio.gather(holder, *waiting, return_exceptions=True)
    assert order == ["a", "c", "d"]
    with Reservation(room) as claim:
        await claim.grow_to(10)
        with pytest.raises(BudgetExceeded):
            await FairBudget(0, 0.01, "full").take(1)
