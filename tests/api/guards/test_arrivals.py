"""Memory of a body that is being received, and slow bodies that make room."""

from __future__ import annotations

import asyncio

import pytest

from atroposlib.api.guards.arrivals import FIRST_BYTES, BodyArrival, BodyMemory
from atroposlib.api.guards.budget import BudgetExceeded, FairBudget, Reservation


async def test_a_body_that_steps_aside_holds_what_it_has_received_and_frees_the_rest():
    first, rest = (FairBudget(2 * FIRST_BYTES, 0.01, "full") for _ in range(2))
    with BodyArrival(first, rest, 4 * FIRST_BYTES) as body:
        await body.reserve(3 * FIRST_BYTES)
        body.received.add(b"x" * 1000)
        assert (body.step_aside(), body.held) == (True, 1000)
        assert not body.step_aside()
        with Reservation(rest) as other:
            await other.grow_to(2 * FIRST_BYTES)
        await body.reserve(3 * FIRST_BYTES)
        assert body.held == 3 * FIRST_BYTES
    for budget in (first, rest):
        await budget.take(2 * FIRST_BYTES)  # nothing is held any more
        with pytest.raises(BudgetExceeded):
            await budget.take(1)


async def test_the_largest_of_the_slow_bodies_is_cut_off_for_a_request_that_waits():
    memory = BodyMemory(FIRST_BYTES, 2 * FIRST_BYTES, wait_s=60.0)
    with memory.arrival(FIRST_BYTES) as small, memory.arrival(FIRST_BYTES) as large:
        for body, size in ((small, FIRST_BYTES // 2), (large, FIRST_BYTES)):
            body.received.add(b"x" * size)
            await body.reserve(FIRST_BYTES)
        memory.receiving |= {small, large}
        with memory.arrival(FIRST_BYTES) as new:
            waiting = asyncio.create_task(new.reserve(FIRST_BYTES))
            with large.deadline:
                await asyncio.sleep(3600)
            assert large.deadline.cancelled_caught and small.held == FIRST_BYTES // 2
            large.__exit__()
            await waiting
