"""Wait reasons in the log; shutdown on signals, and waits that end with it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest

from atroposlib.envs.runtime.waits import Shutdown, StopRequested, Waits
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


def waits_at(now):
    return Waits("toy", clock=lambda: now[0])


def test_a_wait_is_logged_at_its_beginning_and_every_ten_seconds(caplog):
    caplog.set_level(logging.INFO)
    now = [100.0]
    waits = waits_at(now)
    for second in range(65):
        now[0] = 100.0 + second
        waits.start("api", f"waiting for rollout API at http://api: refused, {second} s")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 7 and "toy waits for rollout API" in said[0]
    assert waits.on.endswith("64 s") and waits.seconds("api") == 64
    waits.clear("api")
    assert waits.on is None and "continues after 64 s" in caplog.records[-1].getMessage()


def test_a_usual_wait_is_logged_only_after_ten_seconds(caplog):
    caplog.set_level(logging.INFO)
    now = [100.0]
    waits = waits_at(now)
    waits.start("trainer", "the trainer to take a batch", usual=True)
    waits.clear("trainer")
    assert caplog.records == []
    waits.start("trainer", "the trainer to take a batch", usual=True)
    now[0] += 11
    waits.start("trainer", "the trainer to take a batch", usual=True)
    assert len(caplog.records) == 1


def test_several_waits_go_on_at_once_the_outer_cause_first():
    """A full disk refuses posts while the last groups were dropped: both stay known."""
    now = [0.0]
    waits = waits_at(now)
    waits.start("groups", "a group worth keeping: 8 of 8 dropped")
    now[0] = 30.0
    waits.start("api", "waiting for rollout API: HTTP 429 the disk is full")
    now[0] = 40.0
    waits.start("groups", "a group worth keeping: 8 of 8 dropped")
    report = [(wait.cause, wait.age_s) for wait in waits.report()]
    assert report == [("api", 10.0), ("groups", 40.0)]
    assert waits.on == "rollout API: HTTP 429 the disk is full"
    waits.clear("api")
    assert [wait.cause for wait in waits.report()] == ["groups"]


def test_a_reason_of_any_length_fits_a_heartbeat():
    waits = waits_at([0.0])
    waits.start("failures", "x" * 10_000)
    assert len(waits.report()[0].on) == 400


async def test_a_failure_ends_every_wait_by_its_error():
    shutdown = Shutdown()
    waiting = asyncio.ensure_future(shutdown.pause(3600))
    shutdown.fail(ConfigError("the model"))
    with pytest.raises(ConfigError, match="the model"):
        await asyncio.wait_for(waiting, 600)
