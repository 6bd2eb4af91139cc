"""Event stream of a process: a ring of recent events with any number of subscribers.

A subscriber is a position in the ring, so a slow subscriber costs nothing and causes no delay. When
the ring has moved past it, its next event is the number of missed events.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import msgspec

from atroposlib.api.common.waiting import BroadcastEvent, wait_at_most

RING_EVENTS = 1000
MAX_SUBSCRIBERS = 64
KEPT_ACKS = 21
HEARTBEAT_S = 15.0  # proxies close connections that are idle for longer
_RECONNECT_MS = 2000
MISSED = "missed"  # the kind of an event that counts lost events

Field = int | float | str | None


@dataclass(frozen=True, slots=True)
class Event:
    """Event of a process. ``id`` orders the events of the same process."""

    id: str
    kind: str
    at: float  # s, clock of the API
    fields: Mapping[str, Field]

    def frame(self) -> bytes:
        """As text/event-stream."""
        data = msgspec.json.encode({"at": self.at, **self.fields}).decode()
        return f"id: {self.id}\nevent: {self.kind}\ndata: {data}\n\n".encode()


class Events:
    """Publish and subscribe in a process. All methods belong to the event loop's thread.

    Args:
        instance: distinguishes the ids of this process from the ids of its predecessor.
        keep: stores each event beyond the ring; must not block.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        instance: str | None = None,
        max_subscribers: int = MAX_SUBSCRIBERS,
        keep: Callable[[str, str, float, Mapping[str, Field]], object] = lambda *_: None,
    ) -> None:
        self._clock, self._keep = clock, keep
        self._instance = instance if instance is not None else f"{time.time_ns():x}"
        self._most_subscribers = max_subscribers
        self._ring: deque[Event] = deque(maxlen=RING_EVENTS)
        self._latest = {"uptime": clock()}  # time of the last event of each kind
        self._acked_at: deque[float] = deque(maxlen=KEPT_ACKS)
        self._next_no = 1
        self._subscribers = 0
        self._news = BroadcastEvent()
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether the limit of subscribers is reached."""
        return self._subscribers >= self._most_subscribers

    def publish(self, kind: str, **fields: Field) -> None:
        """Append an event and wake all subscribers. Never blocks and never fails."""
        event = Event(f"{self._instance}-{self._next_no}", kind, self._clock(), fields)
        self._next_no += 1
        self._latest[kind] = event.at
        self._ring.append(event)
        self._keep(event.id, kind, event.at, fields)
        self._news.notify()

    def publish_ack(self, no: int) -> None:
        """Publish that batch ``no`` was trained; the times give :meth:`usual_step_s`."""
        self.publish("acked", no=no)
        self._acked_at.append(self._latest["acked"])

    def ages_s(self) -> dict[str, float]:
        """Seconds since the last event of each kind, and since the start under "uptime"."""
        now = self._clock()
        return {kind: max(0.0, now - at) for kind, at in self._latest.items()}

    def usual_step_s(self) -> float | None:
        """Median seconds between two acks; None before the second."""
        gaps = [later - earlier for earlier, later in pairwise(self._acked_at)]
        return median(gaps) if gaps else None

    def subscribe(self, after: str | None = None) -> Subscription:
        """Events from now on, or events of the ring after the id ``after``.

        An id of another process means a restart: the whole ring follows.
        """
        self._subscribers += 1
        return Subscription(self, self._position_after(after))

    def close(self) -> None:
        """End every subscription, present and future, because the process stops."""
        self._closed = True
        self._news.notify()

    def _position_after(self, after: str | None) -> int:
        if after is None:
            return self._next_no
        instance, _, no = after.rpartition("-")
        if instance != self._instance or not (no.isascii() and no.isdecimal()):
            return self._oldest_no()
        return min(int(no[:18]) + 1, self._next_no)

    def _oldest_no(self) -> int:
        return self._next_no - len(self._ring)


class Subscription:
    """Reader of the events. It counts against the maximum until it is closed."""

    def __init__(self, events: Events, position: int) -> None:
        self._events = events
        self._position = position  # number of the next event to read
        self._open = True

    @property
    def ended(self) -> bool:
        """Whether no further event will come."""
        events = self._events
        return not self._open or (events._closed and self._position >= events._next_no)

    async def next_within(self, timeout_s: float) -> Event | None:
        """The next event; None if none came in time, or if this ``ended``."""
        news = self._events._news.subscribe()
        if (event := self._take()) is not None or self.ended:
            return event
        return self._take() if await wait_at_most(news, timeout_s) else None

    def close(self) -> None:
        """Stop counting against the maximum. Idempotent."""
        if self._open:
            self._open = False
            self._events._subscribers -= 1

    def _take(self) -> Event | None:
        events = self._events
        oldest = events._oldest_no()
        if self._position < oldest:
            missed, self._position = oldest - self._position, oldest
            last = f"{events._instance}-{oldest - 1}"
            return Event(last, MISSED, events._ring[0].at, {"events": missed})
        if self._position < events._next_no:
            self._position += 1
            return events._ring[self._position - 1 - oldest]
        return None


async def frames(
    reader: Subscription, heartbeat_s: float = HEARTBEAT_S
) -> AsyncIterator[bytes]:
    """A frame per event, and a comment after every ``heartbeat_s`` without an event."""
    yield f"retry: {_RECONNECT_MS}\n\n".encode()
    while not reader.ended:
        event = await reader.next_within(heartbeat_s)
        if event is not None:
            yield event.frame()
        elif not reader.ended:
            yield b": still here\n\n"
