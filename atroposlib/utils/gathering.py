"""Concurrent awaitables: when one fails, the others are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def gather_or_cancel(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Results in order; when one call fails, the others are cancelled and awaited."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def gather_bounded(
    items: Iterable[T], work: Callable[[T], Awaitable[R]], at_once: int
) -> list[R]:
    """Results of ``work`` in order, at most ``at_once`` concurrently; cancels on failure."""
    room = asyncio.Semaphore(at_once)

    async def one(item: T) -> R:
        async with room:
            return await work(item)

    return await gather_or_cancel(map(one, items))
