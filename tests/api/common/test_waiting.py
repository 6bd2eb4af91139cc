"""Waits on the event loop: broadcasts and their bound, calls without a client."""

from __future__ import annotations

from atroposlib.api.common.waiting import BroadcastEvent, never_disconnects, wait_at_most


async def test_a_notification_wakes_current_subscribers_only():
    changed = BroadcastEvent()
    first, second = changed.subscribe(), changed.subscribe()
    changed.notify()
    later = changed.subscribe()
    assert first.is_set() and second.is_set() and not later.is_set()
    assert await wait_at_most(first, 60.0)
    assert not await wait_at_most(later, 0.0)


async def test_a_call_without_a_client_never_sees_a_disconnect():
    assert not await never_disconnects()
