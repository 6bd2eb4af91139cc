"""Accept posted groups: check against the run, store, absorb repeated posts.

An environment of the original drops groups that are refused with 4xx. So while the store is
full its post is held, and answered 503 after the hold. Other clients get 429 at once,
with the number of bytes that would be accepted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from time import monotonic

from atroposlib.api.archive.records import RowFacts
from atroposlib.api.codec.formats import ParsedGroup
from atroposlib.api.common.pools import result_of
from atroposlib.api.common.records import Accepted, GroupState, NewGroup, Stored
from atroposlib.api.common.run_record import RunRecord
from atroposlib.api.common.waiting import IsDisconnected, never_disconnects, wait_at_most
from atroposlib.api.decisions.batching import complete_buffer
from atroposlib.api.decisions.run_state import (
    expected_size,
    find_env,
    require_key,
    require_length,
    require_run,
)
from atroposlib.api.guards.auth import own_id, require_env
from atroposlib.api.guards.tokens import Caller
from atroposlib.api.run.certification import Certification
from atroposlib.api.run.context import ServiceContext
from atroposlib.api.run.run_cache import MAX_ATTEMPTS
from atroposlib.api.store.sql.put import MarkReplies, ReplyInDoubt
from atroposlib.api.store.sql.writer import OPERATION_TIMEOUT_S, gave_up
from atroposlib.errors import (
    CorruptPayload,
    InvalidGroup,
    RunChanged,
    StoreError,
    StoreFull,
    UnknownEnv,
)
from atroposlib.wire.lineage import on_lineage

# Longest pause between retries of a held post: a second process may free disk space.
SPACE_RECHECK_S = 1.0
DOUBT_S = 1.0  # longer than a replica takes to record that a reply was sent
DOUBT_RECHECK_S = 0.02
CONFIRM_WITHIN_S = 0.1  # a kill within this time after a reply leaves its groups in doubt
LATEST_BYTES = 256 * 1024  # larger examples are read from the store, until they are freed


@dataclass(frozen=True, slots=True)
class Post:
    """A request: its groups and its sender."""

    groups: Sequence[ParsedGroup]
    run_id: str | None = None
    caller: Caller | None = None
    is_disconnected: IsDisconnected = never_disconnects
    hold_s: float = 0.0  # maximum wait for space in the store
    on_hold: Callable[[], None] = lambda: None  # called before each wait


class Posts:
    """Posts of the environments."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self.certification = Certification(context)
        # Groups without a key: environments of the original repeat a post whose reply they
        # did not get. Two equal groups are no proof of that, because a deterministic
        # environment sends equal groups on purpose. So the store marks each group until its
        # reply is confirmed, and a repeat is absorbed, once, only if the reply was lost: the
        # client had hung up, or nothing was recorded for ``DOUBT_S``.
        self._confirmed: set[int] = set()  # marks that a later transaction deletes
        self._flush: asyncio.Task[None] | None = None
        self._latest: tuple[int, bytes | None] | None = None

    async def accept(self, post: Post) -> list[Accepted]:
        """Store parsed groups; all or none are durable on return.

        Raises:
            UnknownEnv: the run id or an env id is not of this run.
            Forbidden: the token is bound to another environment.
            InvalidGroup: a group can never be part of a batch.
            Uncertified: it lacks a claim that the trainer requires.
            KeyConflict: a key was used for different content.
            StoreFull: the groups do not fit within the hold.
            RunChanged: the run kept changing.
        """
        context = self._context
        await context.run_cache.refresh_if_old()
        stored = await self._keep(post)
        if keyless := [result.gid for group, result in stored if group.key is None]:
            await self._mark(keyless, gone=await post.is_disconnected())
        await context.touch(*{group.env for group in post.groups})
        return [_accepted(group, result) for group, result in stored]

    async def _mark(self, gids: Sequence[int], gone: bool) -> None:
        """Note before the reply to these groups whether the client still waits for it."""
        if gone:
            await self._do(MarkReplies(lost=gids))
            return
        self._confirmed.update(gids)
        if self._flush is None or self._flush.done():
            self._flush = asyncio.create_task(self._flush_soon())

    async def _flush_soon(self) -> None:
        while self._confirmed:
            await asyncio.sleep(CONFIRM_WITHIN_S)
            confirmed = tuple(self._confirmed)
            with suppress(StoreError):  # a later put deletes these marks
                await self._do(MarkReplies(confirmed))
                self._confirmed.difference_update(confirmed)

    async def _do(self, operation: MarkReplies) -> None:
        await self._context.threads.writes.run(self._context.store.do, operation)

    async def _keep(self, post: Post) -> list[tuple[NewGroup, Stored]]:
        """Put, and wait for free space within the hold of the post."""
        now = asyncio.get_running_loop().time
        end = now() + post.hold_s
        doubt_until = now() + DOUBT_S
        while True:
            room = self._context.space_freed.subscribe()
            try:
                return await self._put(post, now() < doubt_until)
            except ReplyInDoubt:
                post.on_hold()
                await asyncio.sleep(DOUBT_RECHECK_S)
                continue
            except StoreFull as full:
                if await self._context.free_absent():
                    continue
                self._context.note_refusal(str(full))
                # Nothing is stored yet, so a post whose client is gone may end.
                if now() >= end or self._context.stopping or await post.is_disconnected():
                    raise
            post.on_hold()
            await wait_at_most(room, min(SPACE_RECHECK_S, max(0.0, end - now())))

    async def _put(self, post: Post, doubt: bool) -> list[tuple[NewGroup, Stored]]:
        context = self._context
        for _ in range(MAX_ATTEMPTS):
            view = context.view
            try:
                require_run(view.run, post.run_id)
                arrived = context.clock()
                new = [
                    _checked(group, post.caller, view.run, arrived) for group in post.groups
                ]
            except UnknownEnv:  # it may have registered at another replica
                if not context.store.shared or not await context.run_cache.refresh():
                    raise
                continue
            if (trainer := view.run.trainer) and trainer.require_certificate != "off":
                await self.certification.require(new, view.run)
            await self._require_room(new)
            try:
                confirmed = tuple(self._confirmed)
                put = context.store.submit_put(
                    new, view.revision, complete_buffer, confirmed, doubt
                )
                stored = await self._durable(put)
            except RunChanged:
                await context.run_cache.refresh()
                continue
            self._confirmed.difference_update(confirmed)
            self._note(new, stored)
            return list(zip(new, stored))
        raise RunChanged("the run kept changing: post again")

    async def _durable(self, put: Future[list[Stored]]) -> list[Stored]:
        """The result of a put once it is durable."""
        begun = monotonic()
        try:
            return await result_of(put, OPERATION_TIMEOUT_S)
        except FutureTimeout as cause:
            raise gave_up(put) from cause
        finally:
            self._context.metrics.observe_store("put", monotonic() - begun)

    async def _require_room(self, new: Sequence[NewGroup]) -> None:
        """Keep an environment from filling the store while further environments are live.

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
        fresh = [pair for pair in zip(new, stored) if not pair[1].duplicate]
        if not fresh:
            return
        for mark in chain.from_iterable(group.marks for group, _ in fresh):
            context.metrics.marked.labels(mark).inc()
        last, answer = fresh[-1]
        small = len(last.payload) <= LATEST_BYTES
        self._latest = answer.gid, bytes(last.payload) if small else None
        context.queue_stats.added(sum(len(group.payload) for group, _ in fresh))
        for group, accepted in fresh:
            if group.facts is None:
                continue
            rows = RowFacts(
                gid=accepted.gid,
                env=None if group.env is None else context.name_of(group.env),
                arrived=group.arrived,
                arrived_version=group.arrived_version,
                state=accepted.state.value,
                facts=group.facts,
            )
            context.indexer.submit(rows)
        context.on_groups_added()
        context.events.publish("groups", groups=len(fresh), gid=answer.gid)

    async def latest(self) -> bytes | None:
        """The payload of the newest group, or None if there is none or it was freed."""
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
        """Forget the latest example, after a reset."""
        self._latest = None

    def close(self) -> None:
        """Record confirmed replies before the store closes."""
        with suppress(StoreError):
            self._context.store.do(MarkReplies(tuple(self._confirmed)))


def _checked(
    group: ParsedGroup, caller: Caller | None, run: RunRecord, arrived: float
) -> ParsedGroup:
    """The group for the store, checked against ``run``."""
    require_env(caller, None if group.env is None else find_env(run, group.env).desired_name)
    require_key(group.key)
    require_length(run, group.n_seq, group.length)
    return replace(
        group,
        key=None if group.key is None else own_id(caller, group.key),
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
