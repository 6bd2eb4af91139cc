"""Thread pools: results, errors, cancelled callers."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, TimeoutError as FutureTimeout

import pytest

from atroposlib.api.common.pools import Pool, result_of


async def test_a_pool_returns_the_result_and_raises_the_error():
    pool = Pool(1)
    assert await pool.run(lambda: 6 * 7) == 42
    with pytest.raises(KeyError):
        await pool.run(lambda: {}["absent"])


async def test_a_cancelled_caller_waits_until_its_call_has_ended():
    started, release, ended = threading.Event(), threading.Event(), []

    def call():
        started.set()
        release.wait(600)
        ended.append(True)

    task = asyncio.create_task(Pool(1).run(call))
    await asyncio.to_thread(started.wait, 60)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done() and not ended
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_a_wait_for_another_thread_is_bounded():
    with pytest.raises(FutureTimeout):
        await result_of(Future(), timeout_s=0.0)
