"""Environments and trainers over the real clients, and the version that servers sample with."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from atroposlib import wire
from atroposlib.client import AsyncRolloutClient, RolloutClient
from atroposlib.client.api_calls import Timing
from atroposlib.errors import (
    CannotRewind,
    NotRegistered,
    RolloutApiUnavailable,
    RunTaken,
    StaleGeneration,
    UnknownEnv,
)
from tests.simulator.checks import Ledger
from tests.simulator.host import WHO, ApiHost
from tests.simulator.loop import Blocking
from tests.simulator.network import EnvClient, Link, TrainerClient
from tests.simulator.plan import EnvSpec, TrainerSpec

BEAT_S = 4.0
ADMITTED_S = 60.0


class World:
    """What the actors of one simulation share."""

    def __init__(self, host: ApiHost, ledger: Ledger, seed: int, batch_size: int) -> None:
        self.host, self.ledger, self._seed = host, ledger, seed
        self.version = 0  # that the inference servers hold
        self.links: dict[str, Link] = {}
        self.frozen_until = 0.0  # of the trainer
        self.most_ahead = 2 * batch_size  # sequences that an environment queues

    @staticmethod
    def rng_of(seed: int, who: str) -> random.Random:
        """An own generator for each, so that one actor less changes no other."""
        return random.Random(f"{seed} {who}")

    def rng(self, who: str) -> random.Random:
        return self.rng_of(self._seed, who)

    def link(self, who: str) -> Link:
        if who not in self.links:
            rng = self.rng(f"link of {who}")
            self.links[who] = Link(who, self.host, rng, self.ledger.note)
        return self.links[who]

    def waits(self, who: str) -> Callable[[str], None]:
        def note(why: str) -> None:
            assert why, f"{who} waits for nothing that has a name"
            self.ledger.seen["waits"] += 1

        return note


@dataclass
class Environment:
    """Posts groups. One life of the process; ``born`` counts them."""

    world: World
    spec: EnvSpec
    born: int
    made: int = 0
    registered: wire.EnvRegistered | None = None

    async def run(self) -> None:
        name, loop = self.spec.name, asyncio.get_running_loop()
        WHO.set(name)
        self.rng = self.world.rng(f"{name} {self.born}")
        client = EnvClient(
            self.world.link(name),
            timeout_s=self.spec.timeout_s,
            give_up_after_s=self.spec.give_up_s,
            on_wait=self.world.waits(name),
            binary=self.spec.binary,
            timing=Timing(clock=loop.time, uniform=self.rng.random),
        )
        async with client:
            while True:
                try:
                    await self._round(client)
                except (UnknownEnv, NotRegistered):
                    self.registered = None
                except RolloutApiUnavailable:
                    self.world.ledger.seen["gave up"] += 1

    async def _round(self, client: AsyncRolloutClient) -> None:
        spec, ledger = self.spec, self.world.ledger
        if self.registered is None:
            self.registered = await client.register_env(
                wire.RegisterEnv(
                    max_token_length=64,
                    desired_name=spec.name,
                    weight=spec.weight,
                    group_size=spec.group_size,
                    min_batch_allocation=spec.minimum,
                )
            )
            if self.registered is None:
                await asyncio.sleep(max(1.0, client.register_after_s))
            return
        who = wire.EnvIdentifier(env_id=self.registered.env_id, run_id=self.registered.run_id)
        status = await client.status_env(who)
        rows = spec.group_size * spec.at_once
        if status.self_queue_size * spec.group_size >= self.world.most_ahead:
            await asyncio.sleep(4.0)
            return
        admission_id = None
        if status.max_staleness is not None:
            reply = await client.request_admission(who, rows, ttl_s=ADMITTED_S)
            admission_id = reply.admission_id
            if not reply.granted:
                assert reply.blocked_reason, "an admission is refused without a reason"
                await asyncio.sleep(1.0)
                return
        version = self.world.version
        await asyncio.sleep(spec.rollout_s * (0.5 + self.rng.random()))
        groups = [
            one for _ in range(spec.at_once) for one in self._groups(who.env_id, version)
        ]
        sent = await client.send_groups(groups, run_id=self.registered.run_id)
        ledger.acknowledge([str(one.idempotency_key) for one in groups])
        ledger.seen["groups"] += len(groups)
        ledger.seen["duplicates"] += sent.duplicates
        if admission_id is not None:
            await client.release_admission(admission_id)

    def _groups(self, env_id: int, version: int) -> list[wire.ScoredData]:
        size = self.spec.group_size
        sizes = [1, size - 1] if self.spec.parts else [size]
        self.world.ledger.seen["parts"] += self.spec.parts
        return [self._group(env_id, version, rows) for rows in sizes]

    def _group(self, env_id: int, version: int, rows: int) -> wire.ScoredData:
        key = f"{self.spec.name}/{self.born}/{self.made}"
        self.made += 1
        tokens = [[self.born, self.made, row, self.rng.randrange(1000)] for row in range(rows)]
        self.world.ledger.post(key, tokens)
        return wire.ScoredData(
            tokens=tokens,
            masks=[[-100, -100, *row[2:]] for row in tokens],
            scores=[float(row) for row in range(rows)],
            versions=[[-1, -1, version, version] for _ in tokens],
            env_id=env_id,
            idempotency_key=key,
        )


@dataclass
class Trainer:
    """Claims, trains, acks, saves; one life of the process, from the checkpoint."""

    world: World
    spec: TrainerSpec
    life: int
    take_over: bool = False
    name: str = "trainer"
    program: Blocking = field(default_factory=Blocking)

    async def run(self) -> str:
        """Why it ended."""
        WHO.set(self.name)
        beats = asyncio.ensure_future(self._beat())
        try:
            await self.program.run(self._main)
        except (
            StaleGeneration,
            NotRegistered,
            RolloutApiUnavailable,
            RunTaken,
            CannotRewind,
        ) as end:
            self.world.ledger.note(self.name, f"life {self.life} ends: {type(end).__name__}")
            return type(end).__name__
        finally:
            beats.cancel()
        return ""

    async def _beat(self) -> None:
        link = self.world.link(self.name)
        async with EnvClient(link) as client:
            while True:
                about = {"life": str(self.life), "clock": time.time()}
                beat = wire.Heartbeat(role="trainer", name="t", phase="train", details=about)
                await client.heartbeat(beat)
                await asyncio.sleep(BEAT_S)

    # --- blocking, as a trainer is ----------------------------------------------------------

    def _sleep(self, seconds: float) -> None:
        self.program.wait(asyncio.sleep(seconds))

    def _main(self) -> None:
        world, spec = self.world, self.spec
        self.rng = world.rng(f"{self.name} {self.life}")
        self.lineage = world.ledger.checkpoint.copy()
        self.lineage.life = self.life
        clock = world.ledger._clock
        client = TrainerClient(
            world.link(self.name),
            self.program,
            timeout_s=spec.timeout_s,
            give_up_after_s=spec.give_up_s,
            on_wait=world.waits(self.name),
            timing=Timing(clock, self._sleep, self.rng.random),
        )
        with client:
            self._register(client)
            held: list[tuple[wire.ClaimedBatch, tuple[str, ...]]] = []
            while True:
                if (now := clock()) < world.frozen_until:
                    self._sleep(world.frozen_until - now)
                while len(held) <= spec.ahead:
                    more = self._claimed(client, wait_s=5.0 if not held else 0.0)
                    world.ledger.seen["claims ahead"] += bool(held and more)
                    held += more
                    if not more:
                        break
                if held:
                    batch, keys = held.pop(0)
                    self._step(client, batch, keys)

    def _register(self, client: RolloutClient) -> None:
        step = len(self.lineage.numbers)
        self.world.ledger.seen["registrations"] += 1
        client.register(
            wire.Registration(
                **{"wandb_group": "", "wandb_project": "", "checkpoint_dir": ""},
                batch_size=self.spec.batch_size,
                max_token_len=64,
                save_checkpoint_interval=self.spec.save_every,
                starting_step=step,
                num_steps=1_000_000,
                commits=True,
                max_staleness=self.spec.max_staleness,
                staleness_policy=self.spec.policy,
                holds=self.lineage.last,
                life=str(self.life),
                take_over=self.take_over,
            )
        )
        rewound = client.rewind(self.lineage.last)
        assert not rewound.gone, f"{rewound.gone} batches are gone after a registration"
        if self.lineage.last:  # its commit was perhaps lost
            client.commit(self.lineage.last)
        self.world.ledger.continues(self.lineage, client.generation)
        self._publish(client)

    def _publish(self, client: RolloutClient) -> None:
        self.world.version = len(self.lineage.numbers)
        client.announce_version(self.world.version)

    def _claimed(
        self, client: RolloutClient, wait_s: float
    ) -> list[tuple[wire.ClaimedBatch, tuple[str, ...]]]:
        """The next batch with the keys of its groups; empty when there is none to train."""
        batch = client.claim(lease_s=self.spec.lease_s, wait_s=wait_s, binary=self.spec.binary)
        if batch.batch is None:
            assert batch.blocked_reason, "a claim waits for nothing that has a name"
            return []
        # The bound of staleness holds at the claim: a batch claimed ahead is trained later.
        keys = self.world.ledger.deliver(batch, self.lineage, self.world.host.full)
        if batch.batch_no in self.lineage.numbers:  # its ack was lost
            self._ack(client, batch)
            return []
        return [(batch, keys)]

    def _step(
        self, client: RolloutClient, batch: wire.ClaimedBatch, keys: tuple[str, ...]
    ) -> None:
        ledger, spec, no = self.world.ledger, self.spec, batch.batch_no
        assert no is not None
        self._sleep(spec.train_s * (0.5 + self.rng.random()))
        client.extend(batch, lease_s=spec.lease_s)
        ledger.learn(self.lineage, no, keys)
        self._publish(client)
        self._ack(client, batch)
        if len(self.lineage.numbers) % spec.save_every == 0:
            self._save(client, no)

    def _ack(self, client: RolloutClient, batch: wire.ClaimedBatch) -> None:
        life = self.world.host.life
        newest = life.service.context.view.generation if life else 0
        client.ack(batch)
        self.world.ledger.done(batch.batch_no or 0, client.generation)
        assert client.generation >= newest, "the ack of a fenced trainer is accepted"

    def _save(self, client: RolloutClient, no: int) -> None:
        """A checkpoint directory refuses a trainer that is older than its last writer."""
        ledger = self.world.ledger
        if ledger.checkpoint.life > self.life:
            raise StaleGeneration("another trainer writes checkpoints")
        ledger.checkpoint = self.lineage.copy()
        self._sleep(self.rng.random())
        client.commit(no)
