"""Keyless groups that are kept although their sender may not know it.

Old environments send no idempotency key and repeat a post whose answer they did not get.
Two equal groups are no proof of that: a deterministic environment sends equal groups on
purpose. So a repeat is absorbed only if an earlier answer may have been lost: the client
had hung up, or the API was restarted shortly after the group came in. It absorbs once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from atroposlib.api.common.records import UnconfirmedPost
from atroposlib.api.common.threads import IsDisconnected, wait_at_most

UNHEARD_S = 60.0  # how long after a lost answer a repeat of the post is expected
MOST_UNHEARD = 20_000
_ORPHAN_PATIENCE_S = 60.0  # longer than any put takes

Mark = tuple[int | None, bytes]  # env and digest of the payload


@dataclass(eq=False)
class _Post:
    is_disconnected: IsDisconnected
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Unheard:
    """Which keyless groups may come again. Ages are measured with the clock of the API."""

    def __init__(
        self, clock: Callable[[], float], restored: Iterable[UnconfirmedPost]
    ) -> None:
        self._clock = clock
        self._until: dict[Mark, list[float]] = {}  # one entry for each group kept
        self._size = 0
        self._under_way: dict[Mark, list[_Post]] = {}
        self.remember((one.env, one.digest) for one in restored)

    def remember(self, marks: Iterable[Mark]) -> None:
        """The answer about these groups was lost."""
        until = self._clock() + UNHEARD_S
        for mark in marks:
            self._until.setdefault(mark, []).append(until)
            self._size += 1
        if self._size > MOST_UNHEARD:
            self._forget_old()

    def _forget_old(self) -> None:
        now = self._clock()
        for mark, ends in list(self._until.items()):
            if ends[-1] < now or self._size > MOST_UNHEARD:
                del self._until[mark]  # oldest first: the order is that of insertion
                self._size -= len(ends)

    def take(self, mark: Mark) -> bool:
        """Whether a group with this mark repeats one whose answer was lost. Counts once."""
        ends = self._until.get(mark)
        if ends is None:
            return False
        until = ends.pop()
        self._size -= 1
        if not ends:
            del self._until[mark]
        return until >= self._clock()

    def clear(self) -> None:
        self._until.clear()
        self._size = 0

    @contextmanager
    def under_way(
        self, marks: Sequence[Mark], is_disconnected: IsDisconnected
    ) -> Iterator[None]:
        """A post with these groups is being handled."""
        post = _Post(is_disconnected)
        distinct = set(marks)
        for mark in distinct:
            self._under_way.setdefault(mark, []).append(post)
        try:
            yield
        finally:
            post.done.set()
            for mark in distinct:
                self._under_way[mark].remove(post)
                if not self._under_way[mark]:
                    del self._under_way[mark]

    async def settle(self, marks: Sequence[Mark]) -> None:
        """Wait for earlier posts of these groups whose clients have hung up: only when
        they are done is it known whether this one repeats something that was kept."""
        for mark in set(marks):
            for post in list(self._under_way.get(mark, ())):
                if await post.is_disconnected():
                    await wait_at_most(post.done, _ORPHAN_PATIENCE_S)
