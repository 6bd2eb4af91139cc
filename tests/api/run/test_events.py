"""Event ring: delivery to subscribers, counts of missed events, and shutdown."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from atroposlib.api.run.events import RING_EVENTS, Events, frames


def made(instance="i", **more):
    return Events(lambda: 5.0, instance, **more)


async def read(reader, count):
    return [await reader.next_within(5.0) for _ in range(count)]


async def test_a_subscriber_gets_events_after_its_subscription():
    events = made()
    events.publish("register", generation=1)
    reader = events.subscribe()
    events.publish("ack", batch_no=1)
    [event] = await read(reader, 1)
    assert (event.id, event.kind, dict(event.fields)) == ("i-2", "ack", {"batch_no": 1})


async def test_a_waiting_subscriber_is_woken():
    events = made()
    readers = [events.subscribe() for _ in range(3)]
    waiting = [asyncio.ensure_future(reader.next_within(5.0)) for reader in readers]
    await asyncio.sleep(0)
    events.publish("ack")
    assert [event.kind for event in await asyncio.gather(*waiting)] == ["ack"] * 3


async def test_a_timeout_returns_none_and_does_not_end_the_subscription():
    reader = made().subscribe()
    assert await reader.next_within(0.001) is None
    assert not reader.ended


async def test_a_subscriber_continues_after_its_last_event_id():
    events = made()
    for no in range(5):
        events.publish("ack", batch_no=no)
    again = events.subscribe(after="i-3")
    assert [event.id for event in await read(again, 2)] == ["i-4", "i-5"]


@pytest.mark.parametrize("after", ["other-3", "", "i-", "i-x", "-", "\x00"])
async def test_an_event_id_of_another_process_returns_the_whole_ring(after):
    events = made()
    events.publish("a")
    events.publish("b")
    assert [one.kind for one in await read(events.subscribe(after), 2)] == ["a", "b"]


async def test_an_event_id_from_the_future_waits_for_the_next_event():
    events = made()
    events.publish("a")
    reader = events.subscribe(after="i-" + "9" * 5000)
    events.publish("b")
    assert [one.kind for one in await read(reader, 1)] == ["b"]


async def test_a_slow_subscriber_loses_the_oldest_events_and_gets_their_number():
    events = made()
    reader = events.subscribe()
    for no in range(RING_EVENTS + 7):
        events.publish("ack", batch_no=no)
    missed, first = await read(reader, 2)
    assert (missed.kind, dict(missed.fields)) == ("missed", {"events": 7})
    assert first.fields["batch_no"] == 7
    # Resuming from the reported gap returns the following events once.
    assert (await read(events.subscribe(missed.id), 1))[0].id == first.id


async def test_a_shutdown_ends_subscribers_after_their_unread_events():
    events = made()
    reader = events.subscribe()
    events.publish("ack")
    waiting = events.subscribe()
    task = asyncio.ensure_future(waiting.next_within(60.0))
    await asyncio.sleep(0)
    events.close()
    assert await task is None and waiting.ended
    event = await reader.next_within(60.0)
    assert event is not None and event.kind == "ack" and reader.ended


async def test_the_number_of_subscribers_is_bounded_and_a_closed_one_frees_its_slot():
    events = made(max_subscribers=1)
    reader = events.subscribe()
    assert events.full
    reader.close()
    reader.close()
    assert not events.full


async def test_frames_follow_the_event_stream_format_and_a_keepalive_is_a_comment():
    events = made()
    reader = events.subscribe()
    stream = frames(reader, heartbeat_s=0.001)
    assert await anext_of(stream) == b"retry: 2000\n\n"
    assert await anext_of(stream) == b": still here\n\n"
    events.publish("note", text="two\nlines", batch_no=None)
    lines = (await anext_of(stream)).decode().split("\n")
    assert lines[:2] == ["id: i-1", "event: note"] and lines[3:] == ["", ""]
    data = msgspec.json.decode(lines[2].removeprefix("data: "))
    assert data == {"at": 5.0, "text": "two\nlines", "batch_no": None}
    events.close()
    assert [frame async for frame in stream] == []


async def anext_of(stream):
    return await stream.__anext__()


def test_the_usual_step_is_the_median_time_between_acks():
    now = [0.0]
    events = Events(clock=lambda: now[0])
    assert events.usual_step_s() is None
    for no, now[0] in enumerate((10.0, 12.0, 16.0, 18.0)):
        events.publish_ack(no)
    assert events.usual_step_s() == 2.0 and events.ages_s()["acked"] == 0.0
