"""The one place where the run, the store and the decisions meet.

    routes -> RolloutService -> run_state, batching, allocation (pure)
                            '-> store (blocking, in a thread)

The run lives in memory and is saved whole at each transition, before the caller hears of
it. What the queue holds is read from the store and remembered until something changes.
"""

from __future__ import annotations

import asyncio
import uuid
from bisect import insort
from collections.abc import Callable, Sequence

import msgspec
from anyio.to_thread import run_sync as in_thread

from atroposlib.api import run_state
from atroposlib.api.allocation import env_status, minima_of, minimum_sequences
from atroposlib.api.batching import select
from atroposlib.api.concurrency import Gate, Signal, wait_at_most
from atroposlib.api.intake import Incoming
from atroposlib.api.presence import Presence
from atroposlib.api.records import (
    Accepted,
    Batch,
    Chooser,
    Delivery,
    EnvEntry,
    GroupState,
    GroupSummary,
    NewGroup,
    Stored,
    StoreStats,
)
from atroposlib.api.run_state import SILENT_AFTER_S, Run, RunState, SentBatch
from atroposlib.api.store import Store
from atroposlib.errors import Fenced
from atroposlib.wire import (
    EnvIdentifier,
    EnvStatus,
    Heartbeat,
    RegisterEnv,
    Registration,
    RunStatus,
)

RUN_DOCUMENT = "run"
RECHECK_S = 0.05  # a waiting claim looks at most this often, however fast groups arrive


class RolloutService:
    """All verbs of the API, without HTTP. One per process; it owns the store."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self.store = store
        self._clock = clock
        document = store.load(RUN_DOCUMENT)
        self.run = msgspec.json.decode(document, type=Run) if document else Run()
        self.latest: bytes | None = None  # the newest group, for /latest_example
        self._buffers: dict[int, list[tuple[int, int]]] = {}  # env -> (gid, n_seq), by age
        self._presence = Presence(clock, SILENT_AFTER_S)
        self._gate = Gate()
        self._changed = Signal()
        self._stats: StoreStats | None = None
        self._revision = 0
        self._load_buffers()

    def _load_buffers(self) -> None:
        for gid, env, n_seq in self.store.buffered():
            if env is not None:
                self._buffers.setdefault(env, []).append((gid, n_seq))
        for entry in self.run.envs:  # a kill may have come between a post and its release
            self.store.release(self._complete(entry))

    def resumed(self) -> str | None:
        """One line about what the store brought along; None if it brought nothing."""
        stats = self.store.stats()
        if self.run == Run() and not stats.tallies:
            return None
        groups = sum(tally.groups for tally in stats.tallies)
        return (
            f"run {self.run.run_id[:8]} {self.run.state.value}: {groups} groups held, "
            f"{stats.batches_acked} batches acked, policy version {self.run.policy_version}"
        )

    def close(self) -> None:
        self.store.close()

    # --- the run ------------------------------------------------------------------

    async def register(self, body: Registration) -> Run:
        """A trainer takes the run. Trainers that registered before are fenced."""
        async with self._gate.alone():
            fresh_id = uuid.uuid4().hex
            run_state.register(self.run, body, self.run.generation, fresh_id)  # or refuse
            generation = await in_thread(self.store.register)
            await self._become(run_state.register(self.run, body, generation, fresh_id))
            return self.run

    async def register_env(self, body: RegisterEnv) -> tuple[EnvEntry, int] | None:
        """(entry, current step), or None while environments still wait for the trainer."""
        async with self._gate.alone():
            if self.run.state is not RunState.STARTED:
                return None
            run, entry = run_state.join(self.run, body)
            await self._become(run)
            self._presence.called(entry.env_id)
            return entry, await self.current_step()

    async def disconnect_env(self, who: EnvIdentifier) -> None:
        async with self._gate.alone():
            run_state.find_env(self.run, who.env_id, who.run_id)
            await self._become(run_state.leave(self.run, who.env_id))

    async def announce_version(self, version: int) -> int:
        async with self._gate.alone():
            await self._become(run_state.announce(self.run, version))
            return self.run.policy_version

    async def reset(self) -> None:
        """Forget the run and all groups. Ids of its environments mean nothing any more."""
        async with self._gate.alone():
            await in_thread(self.store.reset)
            self.run = Run()
            self.latest = None
            self._buffers.clear()
            self._presence.forget_envs()
            self._touch()

    async def _become(self, run: Run) -> None:
        if run != self.run:
            await in_thread(self.store.save, RUN_DOCUMENT, msgspec.json.encode(run))
            self.run = run
        self._touch()

    def _touch(self) -> None:
        self._revision += 1
        self._stats = None
        self._changed.fire()

    # --- groups come in -----------------------------------------------------------

    async def accept(self, groups: Sequence[Incoming], run_id: str | None) -> list[Accepted]:
        """Keep checked groups; durable on return, all of them or none.

        Raises:
            UnknownEnv: ``run_id`` or an env id is not of this run.
            InvalidGroup: a group can never be part of a batch.
            KeyConflict, StoreFull: as the store says.
        """
        async with self._gate.together():
            run_state.require_run(self.run, run_id)
            new = [_new_group(self.run, incoming) for incoming in groups]
            stored = await in_thread(self.store.put, new)
            fresh = [(s, g) for s, g in zip(stored, new) if not s.duplicate]
            await self._complete_buffers(fresh)
            if fresh:
                self.latest = fresh[-1][1].payload
                self._touch()
            for incoming in groups:
                self._presence.called(incoming.group.env_id)
        return [self._accepted(s, g) for s, g in zip(stored, new)]

    async def _complete_buffers(self, fresh: Sequence[tuple[Stored, NewGroup]]) -> None:
        grown: set[int] = set()
        for stored, group in fresh:
            if group.buffered and group.env is not None:
                buffer = self._buffers.setdefault(group.env, [])
                insort(buffer, (stored.gid, group.n_seq))
                grown.add(group.env)
        released = [gid for env in grown for gid in self._complete(self.run.envs[env])]
        if released:
            await in_thread(self.store.release, released)

    def _complete(self, env: EnvEntry) -> list[int]:
        """Take the groups that add up to the size of ``env`` out of its buffer."""
        buffer = self._buffers.get(env.env_id, [])
        released: list[int] = []
        while gids := run_state.completed(buffer, env.group_size):
            released += gids
            buffer[:] = [held for held in buffer if held[0] not in gids]
        return released

    def _accepted(self, stored: Stored, group: NewGroup) -> Accepted:
        held = self._buffers.get(group.env, []) if group.env is not None else []
        return Accepted(
            duplicate=stored.duplicate,
            buffered=stored.state is GroupState.BUFFERED,
            buffer_size=sum(n_seq for _, n_seq in held),
        )

    # --- batches go out -----------------------------------------------------------

    async def claim(self, generation: int, lease_s: float, wait_s: float) -> Delivery | str:
        """The un-acked batch again, or the next one, or why there is none after ``wait_s``.

        Raises:
            NotRegistered: no trainer has registered.
            Fenced: another trainer registered after this one.
            CorruptPayload: a group is not what it was; the batch stays leased.
        """
        await self._start(generation)
        now = asyncio.get_running_loop().time
        end = now() + wait_s
        while True:
            changed = self._changed.armed()
            got = await self._claim_once(generation, lease_s)
            if not isinstance(got, str) or now() >= end:
                return got
            if await wait_at_most(changed, end - now()):
                await asyncio.sleep(RECHECK_S)

    async def _start(self, generation: int) -> None:
        self.run.registration
        if generation != self.run.generation:
            raise Fenced(f"trainer generation {generation} is not {self.run.generation}")
        if self.run.state is RunState.REGISTERED:
            async with self._gate.alone():
                await self._become(run_state.start(self.run))

    async def _claim_once(self, generation: int, lease_s: float) -> Delivery | str:
        async with self._gate.together():
            size = self.run.registration.batch_size
            batch = await in_thread(
                self.store.claim, generation, size, self._chooser(), self._clock(), lease_s
            )
            if isinstance(batch, str):
                self._stats = None
                return batch
            self._touch()
            return Delivery(batch, await in_thread(self.store.read, batch.gids))

    def _chooser(self) -> Chooser:
        size = self.run.registration.batch_size
        live = self._presence.live(self.run.envs)
        needs = minimum_sequences(minima_of(live), size)
        names = {env.env_id: env.wandb_name for env in live}
        return lambda queue: select(queue, size, needs, names)

    async def ack(self, no: int, generation: int, epoch: int) -> bool:
        """Batch ``no`` was trained on. True the first time.

        Raises:
            Fenced: a later delivery or a newer trainer owns the batch.
        """
        async with self._gate.together():
            first = await in_thread(self.store.ack, no, generation, epoch)
            self._touch()
            return first

    async def note_sent(self, batch: Batch) -> None:
        """A reply to GET /batch went out whole; see ``old_trainers``."""
        sent = SentBatch(no=batch.no, epoch=batch.epoch, generation=batch.generation)
        async with self._gate.alone():
            latest = self.run.sent
            newer = latest is None or (sent.no, sent.epoch) > (latest.no, latest.epoch)
            if newer and self.run.generation == sent.generation:
                await self._become(msgspec.structs.replace(self.run, sent=sent))

    # --- what everybody may know ---------------------------------------------------

    async def _held(self) -> StoreStats:
        if self._stats is None:
            revision = self._revision
            stats = await in_thread(self.store.stats)
            if revision != self._revision:
                return stats  # already outdated: good for this answer, not for the next
            self._stats = stats
        return self._stats

    async def current_step(self) -> int:
        """Starting step plus the batches this trainer generation was handed."""
        if self.run.trainer is None:
            return 0
        return self.run.trainer.starting_step + (await self._held()).delivered

    async def env_status(self, who: EnvIdentifier) -> EnvStatus:
        entry = run_state.find_env(self.run, who.env_id, who.run_id)
        self._presence.called(entry.env_id)
        return env_status(
            entry,
            self._presence.live(self.run.envs),
            (await self._held()).tallies,
            self.run.registration.batch_size,
            await self.current_step(),
            self.run.policy_version,
        )

    def heartbeat(self, beat: Heartbeat) -> None:
        self._presence.beat(beat)

    async def status(self) -> RunStatus:
        stats = await self._held()
        sequences = {state: 0 for state in GroupState}
        for tally in stats.tallies:
            sequences[tally.state] += tally.sequences
        return RunStatus(
            current_step=await self.current_step(),
            queue_size=sum(tally.groups for tally in stats.tallies),
            state=self.run.state.value,
            run_id=self.run.run_id,
            policy_version=self.run.policy_version,
            queued_sequences=sequences[GroupState.PENDING],
            leased_sequences=sequences[GroupState.LEASED],
            buffered_sequences=sequences[GroupState.BUFFERED],
            batches_acked=stats.batches_acked,
            blocked_reason=self._blocked_reason(stats),
            participants=self._presence.participants(),
        )

    def _blocked_reason(self, stats: StoreStats) -> str | None:
        if self.run.trainer is None:
            return "no trainer has registered: waiting for POST /register"
        if self.run.state is not RunState.STARTED:
            return "waiting for the trainer to ask for its first batch"
        return self._chooser()(_stand_ins(stats, self.run.trainer.batch_size)).blocked_reason


def _new_group(run: Run, incoming: Incoming) -> NewGroup:
    group = incoming.group
    return NewGroup(
        payload=incoming.payload,
        n_seq=len(group.tokens),
        env=group.env_id,
        key=group.idempotency_key,
        version=incoming.version,
        buffered=run_state.is_buffered(run, group),
    )


def _stand_ins(stats: StoreStats, batch_size: int) -> list[GroupSummary]:
    """As many queued groups of each kind as could matter: reading all would cost more."""
    return [
        GroupSummary(gid=0, env=tally.env, n_seq=tally.n_seq)
        for tally in stats.tallies
        if tally.state is GroupState.PENDING
        for _ in range(min(tally.groups, batch_size // tally.n_seq + 1))
    ]
