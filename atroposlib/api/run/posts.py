"""Accept posted groups: check them against the run, store them, absorb repeated posts.

An environment of the original drops groups that are refused with 4xx. So while the store is
full its post is held, and answered 503 after the hold. Other clients get 429 at once, with the
number of bytes that would be accepted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain

from atroposlib.api.codec.formats import ParsedGroup
from atroposlib.api.common.records import (
    Accepted,
    GroupState,
    NewGroup,
    Payload,
    RunRecord,
    Stored,
    UnconfirmedPost,
)
from atroposlib.api.common.threads import IsDisconnected, never_disconnects, wait_at_most
from atroposlib.api.decisions.batching import complete_buffer
from atroposlib.api.decisions.run_state import (
    expected_size,
    find_env,
    require_key,
    require_run,
)
from atroposlib.api.guards.auth import require_env
from atroposlib.api.guards.tokens import Caller
from atroposlib.api.run.context import ServiceContext
from atroposlib.api.run.run_cache import MAX_ATTEMPTS
from atroposlib.errors import CorruptPayload, InvalidGroup, RunChanged, StoreFull, UnknownEnv
from atroposlib.wire.lineage import on_lineage

# A held post retries at least so often: other processes may free disk space.
SPACE_RECHECK_S = 1.0
LATEST_BYTES = 256 * 1024  # larger examples are read from the store, until they are freed


@dataclass(frozen=True, slots=True)
class Post:
    """One request: its groups and its sender."""

    groups: Sequence[ParsedGroup]
    run_id: str | None = None
    caller: Caller | None = None
    is_disconnected: IsDisconnected = never_disconnects
    hold_s: float = 0.0  # maximum wait for space in the store


class Posts:
    """Posts of the environments."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        restored = context.store.unconfirmed_posts(context.clock() - LOST_REPLY_WINDOW_S)
        self._dedupe = RepostDedupe(context.clock, restored)
        self._latest: tuple[int, Payload | None] | None = None

    async def accept(self, post: Post) -> list[Accepted]:
        """Store parsed groups; all or none of them are durable on return.

        Raises:
            UnknownEnv: the run id or an env id is not of this run.
            Forbidden: the token is bound to another environment.
            InvalidGroup: a group can never be part of a batch.
            KeyConflict: a key was used for other content.
            StoreFull: they do not fit within the hold.
            RunChanged: the run kept changing.
        """
        context = self._context
        await context.run_cache.refresh_if_old()
        marks = [None if g.key is not None else (g.env, g.digest) for g in post.groups]
        known = [mark for mark in marks if mark is not None]
        await self._dedupe.wait_for_orphans(known)
        with self._dedupe.in_flight(known, post.is_disconnected):
            absorbed = [mark is not None and self._dedupe.absorb(mark) for mark in marks]
            taken = [mark for mark, again in zip(marks, absorbed) if again and mark]
            fresh = [g for g, again in zip(post.groups, absorbed) if not again]
            accepted: list[Accepted] | None = None
            try:
                accepted = await self._keep(post, fresh)
            finally:
                if accepted is None:  # nothing came of this repeat: the next one may be it
                    self._dedupe.remember(taken)
            if known and await post.is_disconnected():
                self._dedupe.remember(known)
        await context.touch(*{group.env for group in post.groups})
        answers = iter(accepted)
        return [_ABSORBED if again else next(answers) for again in absorbed]

    async def _keep(self, post: Post, groups: Sequence[ParsedGroup]) -> list[Accepted]:
        """Put, and wait for free space within the hold of the post."""
        now = asyncio.get_running_loop().time
        end = now() + post.hold_s
        while True:
            room = self._context.space_freed.subscribe()
            try:
                return await self._put(post, groups)
            except StoreFull:
                # Nothing is stored yet, so a post whose client is gone may end.
                if now() >= end or self._context.stopping or await post.is_disconnected():
                    raise
            await wait_at_most(room, min(SPACE_RECHECK_S, max(0.0, end - now())))

    async def _put(self, post: Post, groups: Sequence[ParsedGroup]) -> list[Accepted]:
        context = self._context
        for _ in range(MAX_ATTEMPTS):
            view = context.view
            try:
                require_run(view.run, post.run_id)
                arrived = context.clock()
                new = [_checked(group, post.caller, view.run, arrived) for group in groups]
            except UnknownEnv:  # it may have registered at another replica
                if not context.store.shared or not await context.run_cache.refresh():
                    raise
                continue
            await self._require_room(new)
            try:
                stored = await context.threads.puts.run(
                    context.metrics.timed,
                    context.store.put,
                    new,
                    view.revision,
                    complete_buffer,
                )
            except RunChanged:
                await context.run_cache.refresh()
                continue
            self._note(new, stored)
            return [_accepted(group, answer) for group, answer in zip(new, stored)]
        raise RunChanged("the run kept changing: post again")

    async def _require_room(self, new: Sequence[NewGroup]) -> None:
        """Keep one environment from filling the store while others are live.

        Concurrent posts are not counted here; the store enforces its bound.

        Raises:
            StoreFull: the environment holds half of the store.
            InvalidGroup: the groups can never fit.
        """
        queue_stats, bound = self._context.queue_stats, self._context.store.max_bytes
        size = sum(len(group.payload) for group in new)
        if size > bound:
            raise InvalidGroup("body", "", f"its groups hold more than {bound} bytes")
        if await queue_stats.retained_bytes(size) + size <= bound // 2:
            return
        if len(self._context.live()) < 2:
            return
        coming: Counter[int | None] = Counter()
        for group in new:
            coming[group.env] += len(group.payload)
        held: Counter[int | None] = Counter()
        for group_count in (await queue_stats.read()).group_counts:
            held[group_count.env] += group_count.n_bytes
        for env, n_bytes in coming.items():
            if env is not None and held[env] and held[env] + n_bytes > bound // 2:
                raise StoreFull(f"env {env} holds half of the room: wait for the trainer")

    def _note(self, new: Sequence[ParsedGroup], stored: Sequence[Stored]) -> None:
        """Update counters, the latest example and waiting claims after a durable put."""
        context = self._context
        context.metrics.accepted(new, stored)
        fresh = [(group, one) for group, one in zip(new, stored) if not one.duplicate]
        if not fresh:
            return
        for mark in chain.from_iterable(group.marks for group, _ in fresh):
            context.metrics.marked.labels(mark).inc()
        last, answer = fresh[-1]
        small = len(last.payload) <= LATEST_BYTES
        self._latest = answer.gid, Payload(last.payload, last.media) if small else None
        context.queue_stats.added(sum(len(group.payload) for group, _ in fresh))
        context.on_groups_added()
        context.events.publish("groups", groups=len(fresh), gid=answer.gid)

    async def latest(self) -> Payload | None:
        """The newest group, or None if there is none or it was freed."""
        if self._latest is None:
            return None
        gid, payload = self._latest
        if payload is not None:
            return payload
        try:
            [stored] = await self._context.threads.reads.run(self._context.store.read, [gid])
        except CorruptPayload:  # trained on and freed since
            return None
        return stored

    def forget(self) -> None:
        """Forget the latest example and lost replies, after a reset."""
        self._latest = None
        self._dedupe.clear()


_ABSORBED = Accepted(duplicate=True, buffered=False, buffer_size=0)


def _checked(
    group: ParsedGroup, caller: Caller | None, run: RunRecord, arrived: float
) -> ParsedGroup:
    """The group for the store, checked against ``run``."""
    require_env(caller, None if group.env is None else find_env(run, group.env).desired_name)
    require_key(group.key)
    return replace(
        group,
        version=_on_lineage(group, run),
        arrived_version=run.policy_version if run.trainer else None,
        arrived=arrived,
        expected=expected_size(run, group.env, group.n_seq, group.declared_size),
    )


def _on_lineage(group: ParsedGroup, run: RunRecord) -> int | None:
    """The oldest version of the group, on the line of weights of the current trainer."""
    if group.version is None or group.incarnation is None:
        return group.version
    return max(0, on_lineage(group.version, group.incarnation, run.incarnation, run.starts))


def _accepted(group: NewGroup, stored: Stored) -> Accepted:
    # The original answers "buffered" also for the group that completes the buffer.
    fresh_in_buffer = group.expected is not None and not stored.duplicate
    return Accepted(
        duplicate=stored.duplicate,
        buffered=fresh_in_buffer or stored.state is GroupState.BUFFERED,
        buffer_size=stored.buffered,
    )


LOST_REPLY_WINDOW_S = 60.0  # a repeat of the post is expected this long after a lost reply
MAX_FINGERPRINTS = 20_000
_ORPHAN_TIMEOUT_S = 60.0  # longer than any put takes

Fingerprint = tuple[int | None, bytes]  # env and digest of the payload


@dataclass(eq=False)
class _Post:
    is_disconnected: IsDisconnected
    done: asyncio.Event = field(default_factory=asyncio.Event)


class RepostDedupe:
    """Deduplicates reposts of groups without an idempotency key after a lost reply.

    Environments of the original send no key and repeat a post whose reply they did not get.
    Two equal groups are no proof of that: a deterministic environment sends equal groups on
    purpose. So a repeat is absorbed, once, only if an earlier reply may have been lost: the
    client had hung up, or the API was restarted shortly after the group came in.
    """

    def __init__(
        self, clock: Callable[[], float], restored: Iterable[UnconfirmedPost]
    ) -> None:
        self._clock = clock
        self._until: dict[Fingerprint, list[float]] = {}  # one entry for each group kept
        self._size = 0
        self._in_flight: dict[Fingerprint, list[_Post]] = {}
        self.remember((one.env, one.digest) for one in restored)

    def remember(self, fingerprints: Iterable[Fingerprint]) -> None:
        """Expect a repeat of these groups, because the reply to their post was lost."""
        until = self._clock() + LOST_REPLY_WINDOW_S
        for fingerprint in fingerprints:
            self._until.setdefault(fingerprint, []).append(until)
            self._size += 1
        if self._size > MAX_FINGERPRINTS:
            self._forget_old()

    def _forget_old(self) -> None:
        now = self._clock()
        for fingerprint, ends in list(self._until.items()):
            if ends[-1] < now or self._size > MAX_FINGERPRINTS:
                del self._until[fingerprint]  # oldest first, in the order of insertion
                self._size -= len(ends)

    def absorb(self, fingerprint: Fingerprint) -> bool:
        """Whether a group repeats one whose reply was lost; true once per lost reply."""
        ends = self._until.get(fingerprint)
        if ends is None:
            return False
        until = ends.pop()
        self._size -= 1
        if not ends:
            del self._until[fingerprint]
        return until >= self._clock()

    def clear(self) -> None:
        self._until.clear()
        self._size = 0

    @contextmanager
    def in_flight(
        self, fingerprints: Sequence[Fingerprint], is_disconnected: IsDisconnected
    ) -> Iterator[None]:
        """Register a post with these groups while the block runs."""
        post = _Post(is_disconnected)
        distinct = set(fingerprints)
        for fingerprint in distinct:
            self._in_flight.setdefault(fingerprint, []).append(post)
        try:
            yield
        finally:
            post.done.set()
            for fingerprint in distinct:
                self._in_flight[fingerprint].remove(post)
                if not self._in_flight[fingerprint]:
                    del self._in_flight[fingerprint]

    async def wait_for_orphans(self, fingerprints: Sequence[Fingerprint]) -> None:
        """Wait for earlier posts of these groups whose clients have hung up.

        Only then is it known whether this post repeats groups that were stored.
        """
        for fingerprint in set(fingerprints):
            for post in list(self._in_flight.get(fingerprint, ())):
                if await post.is_disconnected():
                    await wait_at_most(post.done, _ORPHAN_TIMEOUT_S)
