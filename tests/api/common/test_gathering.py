"""Gathering of posts that are stored in one transaction."""

from __future__ import annotations

import asyncio

import pytest

from atroposlib.api.common.threads import Gathering

NEVER_S = 3600.0


class Log:
    """Starts calls, and records those that went on."""

    def __init__(self, wait_s=NEVER_S):
        self.gathering = Gathering(wait_s)
        self.went_on = []

    def ready(self, name, expected):
        async def go():
            with expected:
                async with expected:
                    self.went_on.append(name)

        return asyncio.create_task(go())


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_call_alone_does_not_wait():
    log = Log()
    await log.ready("a", log.gathering.expect())
    assert log.went_on == ["a"]


async def test_ready_calls_wait_for_those_under_way_and_go_on_in_their_order():
    log = Log()
    first, second, third = (log.gathering.expect() for _ in range(3))
    tasks = [log.ready("a", first), log.ready("b", second)]
    await settled()
    assert log.went_on == []
    tasks.append(log.ready("c", third))
    await asyncio.gather(*tasks)
    assert log.went_on == ["a", "b", "c"]


async def test_a_call_that_fails_is_no_longer_waited_for():
    log = Log()
    first, fails = log.gathering.expect(), log.gathering.expect()
    waits = log.ready("a", first)
    await settled()
    with fails:
        pass
    await waits
    fails.leave()  # a second time changes nothing
    await log.ready("b", log.gathering.expect())
    assert log.went_on == ["a", "b"]


async def test_the_wait_for_a_slow_call_is_bounded():
    log = Log(wait_s=0.0)
    first, slow = log.gathering.expect(), log.gathering.expect()
    await log.ready("a", first)
    assert log.went_on == ["a"]
    slow.leave()


async def test_a_call_that_arrives_while_the_last_one_looks_is_waited_for():
    log = Log()
    tasks = [log.ready("a", log.gathering.expect())]
    await asyncio.sleep(0)
    late = log.gathering.expect()
    await settled()
    assert log.went_on == []
    tasks.append(log.ready("b", late))
    await asyncio.gather(*tasks)
    assert log.went_on == ["a", "b"]


async def test_a_cancelled_call_leaves_the_others_waiting_as_before():
    log = Log()
    first, second, third = (log.gathering.expect() for _ in range(3))
    gone, waits = log.ready("a", first), log.ready("b", second)
    await settled()
    gone.cancel()
    await settled()
    assert log.went_on == [] and not waits.done()
    await asyncio.gather(log.ready("c", third), waits)
    assert log.went_on == ["b", "c"]


async def test_a_body_is_not_parsed_while_others_are_stored():
    log = Log()
    first, later = log.gathering.expect(), log.gathering.expect()
    later.leave()
    async with first:
        parsing = asyncio.create_task(later.until_stored())
        await settled()
        assert not parsing.done()
    await parsing
    await later.until_stored()  # nothing is being stored


async def test_the_wait_for_a_slow_transaction_is_bounded_from_its_beginning():
    log = Log(wait_s=0.0)
    slow, later = log.gathering.expect(), log.gathering.expect()
    later.leave()
    async with slow:
        await later.until_stored()


async def test_a_call_whose_transaction_fails_is_no_longer_being_stored():
    log = Log()
    fails = log.gathering.expect()
    with pytest.raises(KeyError):
        async with fails:
            raise KeyError
    await fails.until_stored()
