"""Concurrent awaitables: a failure cancels the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def gather_or_cancel(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Results in order; when a call fails, the rest are cancelled and awaited."""
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


@asynccontextmanager
async def in_one_task(manager: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """``manager``, entered and left by the same task: cancel scopes of anyio require it."""
    entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()

    async def hold() -> None:
        async with manager as value:
            entered.set_result(value)
            await leave.wait()

    holding = asyncio.create_task(hold(), name="lifespan")
    try:
        either: set[asyncio.Future[Any]] = {holding, entered}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            holding.result()
        yield entered.result()
        leave.set()
        await holding
    finally:
        leave.set()
        if not entered.done():
            holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
