"""Groups come in: checked against the run, kept, and absorbed where they came before.

An old environment drops what is answered 4xx, so where there is no room its post is held,
and answered 503 only when the hold is over. New clients get 429 with a credit at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from atroposlib.api.codec.formats import ParsedGroup
from atroposlib.api.common.records import Accepted, GroupState, NewGroup, Payload, Stored
from atroposlib.api.common.threads import IsDisconnected, never_disconnects, wait_at_most
from atroposlib.api.decisions.batching import complete_buffer
from atroposlib.api.decisions.run_state import (
    RunRecord,
    expected_size,
    find_env,
    require_key,
    require_run,
)
from atroposlib.api.guards.auth import require_env
from atroposlib.api.guards.tokens import Caller
from atroposlib.api.run.context import Core
from atroposlib.api.run.repost_dedupe import UNHEARD_S, Mark, Unheard
from atroposlib.api.run.run_cache import MOST_ATTEMPTS
from atroposlib.errors import CorruptPayload, InvalidGroup, RunChanged, StoreFull, UnknownEnv

RELOOK_S = 1.0  # a held post tries again at least so often: disks get room unasked
LATEST_BYTES = 256 * 1024  # larger examples are read from the store while they are there


@dataclass(frozen=True, slots=True)
class Post:
    """One request: its groups, and who sent them."""

    groups: Sequence[ParsedGroup]
    run_id: str | None = None
    caller: Caller | None = None
    is_disconnected: IsDisconnected = never_disconnects
    hold_s: float = 0.0  # how long it waits for room


class Posts:
    """Verb of the environments."""

    def __init__(self, core: Core) -> None:
        self._core = core
        restored = core.store.unconfirmed_posts(core.clock() - UNHEARD_S)
        self._unheard = Unheard(core.clock, restored)
        self._latest: tuple[int, Payload | None] | None = None

    async def accept(self, post: Post) -> list[Accepted]:
        """Keep checked groups; durable on return, all of them or none.

        Raises:
            UnknownEnv: the run id or an env id is not of this run.
            Forbidden: the token is bound to another environment.
            InvalidGroup: a group can never be part of a batch.
            KeyConflict, StoreFull: as the store says.
            RunChanged: the run kept changing.
        """
        core = self._core
        await core.keeper.refresh_if_old()
        marks = _marks(post.groups)
        known = [mark for mark in marks if mark is not None]
        await self._unheard.settle(known)
        with self._unheard.under_way(known, post.is_disconnected):
            absorbed = [mark is not None and self._unheard.take(mark) for mark in marks]
            taken = [mark for mark, again in zip(marks, absorbed) if again and mark]
            fresh = [g for g, again in zip(post.groups, absorbed) if not again]
            accepted: list[Accepted] | None = None
            try:
                accepted = await self._keep(post, fresh)
            finally:
                if accepted is None:  # nothing came of this repeat: the next one may be it
                    self._unheard.remember(taken)
            if known and await post.is_disconnected():
                self._unheard.remember(known)
        await core.heard_of(*{group.env_id for group in post.groups})
        answers = iter(accepted)
        return [_ABSORBED if again else next(answers) for again in absorbed]

    async def _keep(self, post: Post, groups: Sequence[ParsedGroup]) -> list[Accepted]:
        """Put, and wait for room within the hold of the post."""
        now = asyncio.get_running_loop().time
        end = now() + post.hold_s
        while True:
            room = self._core.room_made.subscribe()
            try:
                return await self._put(post, groups)
            except StoreFull:
                # Nothing is kept yet, so a post that nobody waits for any more may end.
                if now() >= end or self._core.stopping or await post.is_disconnected():
                    raise
            await wait_at_most(room, min(RELOOK_S, max(0.0, end - now())))

    async def _put(self, post: Post, groups: Sequence[ParsedGroup]) -> list[Accepted]:
        core = self._core
        for _ in range(MOST_ATTEMPTS):
            view = core.view
            try:
                new = _checked(post, groups, view.run, core.clock())
            except UnknownEnv:  # it may have registered with another replica
                if not core.store.shared or not await core.keeper.refresh():
                    raise
                continue
            await self._require_room(new)
            try:
                stored = await core.threads.puts.run(
                    partial(
                        core.metrics.timed, core.store.put, new, view.revision, complete_buffer
                    )
                )
            except RunChanged:
                await core.keeper.refresh()
                continue
            self._note(groups, new, stored)
            return [_accepted(group, answer) for group, answer in zip(new, stored)]
        raise RunChanged("the run kept changing: post again")

    async def _require_room(self, new: Sequence[NewGroup]) -> None:
        """Keep one environment from filling the store while others live.

        Soft: what comes at the same time is not counted. The store keeps the bound itself.
        """
        holdings, bound = self._core.holdings, self._core.store.max_bytes
        size = sum(len(group.payload) for group in new)
        if size > bound:
            raise InvalidGroup("body", "", f"its groups hold more than {bound} bytes")
        if await holdings.retained_bytes(size) + size <= bound // 2:
            return
        if len(self._core.live()) < 2:
            return
        coming: Counter[int | None] = Counter()
        for group in new:
            coming[group.env] += len(group.payload)
        held: Counter[int | None] = Counter()
        for group_count in (await holdings.look()).group_counts:
            held[group_count.env] += group_count.n_bytes
        for env, n_bytes in coming.items():
            if env is not None and held[env] and held[env] + n_bytes > bound // 2:
                raise StoreFull(f"env {env} holds half of the room: wait for the trainer")

    def _note(
        self, groups: Sequence[ParsedGroup], new: Sequence[NewGroup], stored: Sequence[Stored]
    ) -> None:
        """What is kept is durable: tell the counters and the waiting."""
        core = self._core
        core.metrics.accepted(new, stored)
        fresh = [(g, n, s) for g, n, s in zip(groups, new, stored) if not s.duplicate]
        if not fresh:
            return
        for incoming, _, _ in fresh:
            for mark in incoming.marks:
                core.metrics.marked(mark)
        _, last, answer = fresh[-1]
        small = len(last.payload) <= LATEST_BYTES
        self._latest = answer.gid, Payload(last.payload, last.media) if small else None
        core.holdings.stored(sum(len(n.payload) for _, n, _ in fresh))
        core.groups_came()
        core.events.publish("groups", groups=len(fresh), gid=answer.gid)

    async def credit_bytes(self) -> int:
        """Payload bytes that would still be taken, about."""
        bound = self._core.store.max_bytes
        return max(0, bound - await self._core.holdings.retained_bytes(0))

    async def latest(self) -> Payload | None:
        """The newest group, or None if there is none or it is gone."""
        if self._latest is None:
            return None
        gid, payload = self._latest
        if payload is not None:
            return payload
        try:
            [stored] = await self._core.threads.reads.run(lambda: self._core.store.read([gid]))
        except CorruptPayload:  # trained on and freed since
            return None
        return stored

    def forget(self) -> None:
        """The run was reset."""
        self._latest = None
        self._unheard.clear()


_ABSORBED = Accepted(duplicate=True, buffered=False, buffer_size=0)


def _marks(groups: Iterable[ParsedGroup]) -> list[Mark | None]:
    return [None if g.key is not None else (g.env_id, g.digest) for g in groups]


def _checked(
    post: Post, groups: Iterable[ParsedGroup], run: RunRecord, arrived: float
) -> list[NewGroup]:
    """The groups as the store takes them, if ``run`` can use them."""
    require_run(run, post.run_id)
    return [_new_group(post, group, run, arrived) for group in groups]


def _new_group(post: Post, incoming: ParsedGroup, run: RunRecord, arrived: float) -> NewGroup:
    env_id = incoming.env_id
    require_env(post.caller, None if env_id is None else find_env(run, env_id).desired_name)
    require_key(incoming.key)
    return NewGroup(
        payload=incoming.payload,
        n_seq=incoming.n_seq,
        n_tokens=incoming.n_tokens,
        media=incoming.media,
        digest=incoming.digest,
        env=env_id,
        key=incoming.key,
        version=incoming.version,
        arrived_version=run.policy_version if run.trainer else None,
        arrived=arrived,
        expected=expected_size(run, env_id, incoming.n_seq, incoming.declared_size),
    )


def _accepted(group: NewGroup, stored: Stored) -> Accepted:
    # The original says "buffered" also of the group that completes the buffer.
    fresh_in_buffer = group.expected is not None and not stored.duplicate
    return Accepted(
        duplicate=stored.duplicate,
        buffered=fresh_in_buffer or stored.state is GroupState.BUFFERED,
        buffer_size=stored.buffered,
    )
