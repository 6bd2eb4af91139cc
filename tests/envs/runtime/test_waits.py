"""Wait reasons in the log; shutdown on signals, and waits that end with it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest

from atroposlib.envs.runtime.waits import Shutdown, StopRequested, WaitStatus
from atroposlib.errors import ConfigError


async def test_a_call_that_ends_before_a_shutdown_returns_its_result():
    async def answer():
        return 42

    assert await Shutdown().or_shutdown(answer()) == 42


async def test_an_error_of_the_call_is_raised():
    async def broken():
        raise KeyError("x")

    with pytest.raises(KeyError):
        await Shutdown().or_shutdown(broken())


async def test_a_shutdown_cancels_the_call_it_interrupts():
    shutdown, cancelled = Shutdown(), []

    async def hang():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    waiting = asyncio.ensure_future(shutdown.or_shutdown(hang()))
    await asyncio.sleep(0.01)
    shutdown.request("test")
    with pytest.raises(StopRequested):
        await waiting
    assert cancelled == [True]


async def test_after_a_request_every_pause_ends_at_once():
    shutdown = Shutdown()
    shutdown.request("test")
    with pytest.raises(StopRequested):
        await asyncio.wait_for(shutdown.pause(3600), 600)
    assert not shutdown.forced


async def test_the_first_signal_requests_and_the_second_cancels_the_main_task():
    shutdown = Shutdown()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    async def main():
        shutdown.listen()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(shutdown.requested.wait(), 600)
        assert not shutdown.forced
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    try:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.ensure_future(main()), 600)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert shutdown.forced


def test_a_wait_is_logged_at_its_beginning_and_every_ten_seconds(caplog):
    caplog.set_level(logging.INFO)
    now = [100.0]
    one = WaitStatus("toy", clock=lambda: now[0])
    for second in range(65):
        now[0] = 100.0 + second
        one.start(f"waiting for rollout API at http://api: refused, {second} s")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 7 and "toy waits for rollout API" in said[0]
    assert one.on.endswith("64 s") and one.seconds() == 64
    one.clear()
    assert one.on is None and "continues after 64 s" in caplog.records[-1].getMessage()


def test_a_usual_wait_is_logged_only_after_ten_seconds(caplog):
    caplog.set_level(logging.INFO)
    now = [100.0]
    one = WaitStatus("toy", clock=lambda: now[0])
    one.start("the trainer to take a batch", usual=True)
    one.clear()
    assert caplog.records == []
    one.start("the trainer to take a batch", usual=True)
    now[0] += 11
    one.start("the trainer to take a batch", usual=True)
    assert len(caplog.records) == 1


async def test_a_failure_ends_every_wait_by_its_error():
    shutdown = Shutdown()
    waiting = asyncio.ensure_future(shutdown.pause(3600))
    shutdown.fail(ConfigError("the model"))
    with pytest.raises(ConfigError, match="the model"):
        await asyncio.wait_for(waiting, 600)
