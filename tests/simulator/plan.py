"""What happens in a simulation: actors and faults, drawn from a seed; a JSON file keeps one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import msgspec

ROW_BYTES = 400  # about, of a stored row
CALM_S = 120.0  # without faults at the end; each holds a step
# Until all that was acknowledged is trained on: slow environments fill few batches.
MOST_CALMS = 4


class Kind(str, Enum):
    """A fault, of the link or of the process of ``who``."""

    LOSS = "loss"  # requests and answers get lost, in silence or by a reset
    REPEAT = "repeat"  # requests arrive once more, up to 30 s later
    SLOW = "slow"  # each direction takes up to 8 s, so requests overtake each other
    CUT = "cut"  # nothing passes
    SLOW_BODY = "slow body"
    CRASH = "crash"  # kill -9 of an environment or a trainer, which starts again
    FREEZE = "freeze"  # a trainer that does not go on, so that its lease ends
    SECOND = "second"  # another trainer takes the run over
    CLOCK = "clock"  # the wall clock of an environment or a trainer is set off that of the API
    POWER = "power"  # of the API's machine, at some write of its store


class Fault(msgspec.Struct, frozen=True):
    at: float
    kind: Kind
    who: str
    lasts: float
    steps: int = 0  # of POWER: writes and syncs until it goes; of CLOCK: seconds


class EnvSpec(msgspec.Struct, frozen=True):
    name: str
    group_size: int
    rollout_s: float
    at_once: int  # groups of a post
    parts: bool  # groups arrive in parts, which the API buffers
    binary: bool
    minimum: float | None
    weight: float
    timeout_s: float
    give_up_s: float


class TrainerSpec(msgspec.Struct, frozen=True):
    batch_size: int
    train_s: float
    lease_s: float
    save_every: int
    ahead: bool  # claims the next batch before it trains
    binary: bool
    max_staleness: int | None
    policy: str
    timeout_s: float
    give_up_s: float


class Plan(msgspec.Struct, frozen=True):
    seed: int
    store: str
    max_bytes: int
    trouble_s: float  # until then there are faults
    envs: tuple[EnvSpec, ...]
    trainer: TrainerSpec
    faults: tuple[Fault, ...]

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def load(path: Path) -> Plan:
    return msgspec.json.decode(path.read_bytes(), type=Plan)


def draw(seed: int, hours: float = 0.2, store: str | None = None) -> Plan:
    """The plan of a seed, over at most so many simulated hours."""
    rng = random.Random(seed)
    most_s = hours * 3600 - CALM_S
    trouble_s = rng.uniform(0.4, 1.0) * most_s
    batch_size = rng.choice((8, 16, 16, 32))
    store = store or rng.choice(("memory", "sqlite"))
    parts = rng.random() < 0.3  # sizes of parts and minima together may fit no batch
    envs = tuple(_env(rng, i, parts) for i in range(rng.choice((1, 2, 2, 3))))
    if not parts:
        envs = _with_minima(random.Random(f"{seed} minima"), envs, batch_size)
    # At most 40 s of rollouts per batch and per minimum, so that a calm holds steps.
    per_s = sum(env.group_size * env.at_once / env.rollout_s for env in envs)
    shorter = max(1.0, batch_size / per_s / 40.0)
    envs = tuple(
        msgspec.structs.replace(env, rollout_s=min(env.rollout_s / shorter, longest))
        for env in envs
        for longest in [_longest_s(env, batch_size)]
    )
    staleness = rng.choice((None, None, 1, 2, 4))
    trainer = TrainerSpec(
        batch_size=batch_size,
        train_s=rng.choice((2.0, 4.0, 8.0)),
        lease_s=rng.choice((15.0, 30.0, 60.0)),
        save_every=rng.choice((1, 2, 5)),
        ahead=rng.random() < 0.4,
        binary=rng.random() < 0.5,
        max_staleness=staleness,
        policy=rng.choice(("keep", "mask", "drop")),
        timeout_s=rng.choice((5.0, 15.0, 30.0)),
        give_up_s=rng.choice((20.0, 600.0)),
    )
    faults = [
        _fault(rng, rng.random() * trouble_s, envs, store)
        for _ in range(int(trouble_s / rng.choice((15, 40, 100))))
    ]
    clocks = random.Random(f"{seed} clocks")  # its own, so that the other faults stay
    for who in (*(env.name for env in envs), "trainer"):
        for at in (0.0, clocks.random() * trouble_s):
            faults.append(Fault(at, Kind.CLOCK, who, 0.0, clocks.randrange(-300, 301)))
    faults.sort(key=lambda one: one.at)
    # Room for the batches between two commits, and for some more: posts are refused at times.
    few_bytes = ROW_BYTES * batch_size * (trainer.save_every + 4)
    max_bytes = rng.choice((2**30, 2**30, few_bytes))
    return Plan(seed, store, max_bytes, trouble_s, envs, trainer, tuple(faults))


def _with_minima(
    rng: random.Random, envs: tuple[EnvSpec, ...], batch_size: int
) -> tuple[EnvSpec, ...]:
    """The environments of half of the seeds with minima, and with groups that leave room."""
    if rng.random() < 0.5:
        return envs
    return tuple(
        msgspec.structs.replace(
            env,
            group_size=min(env.group_size, batch_size // 4),
            minimum=rng.choice((None, 0.25, 0.25)),
        )
        for env in envs
    )


def _longest_s(env: EnvSpec, batch_size: int) -> float:
    per_rollout = env.group_size * env.at_once
    return 40.0 * per_rollout / (batch_size * env.minimum) if env.minimum else float("inf")


def _env(rng: random.Random, i: int, parts: bool) -> EnvSpec:
    size = rng.choice((1, 2, 4, 4, 8))
    return EnvSpec(
        name=f"env{i}",
        group_size=size,
        rollout_s=rng.choice((2.0, 6.0, 15.0)),
        at_once=rng.choice((1, 2, 3)) if size < 4 else 1,
        parts=parts and size > 1 and rng.random() < 0.5,
        binary=rng.random() < 0.5,
        minimum=None,
        weight=rng.choice((1.0, 1.0, 2.0)),
        timeout_s=rng.choice((5.0, 15.0, 30.0)),
        give_up_s=rng.choice((10.0, 600.0)),
    )


_PROCESSES = (Kind.CRASH, Kind.FREEZE, Kind.SECOND, Kind.POWER)
_LINKS = tuple(kind for kind in Kind if kind not in (*_PROCESSES, Kind.CLOCK))


def _fault(rng: random.Random, at: float, envs: Sequence[EnvSpec], store: str) -> Fault:
    kind = rng.choice(_LINKS if rng.random() < 0.6 else _PROCESSES)
    if kind is Kind.POWER and store == "memory":
        kind = Kind.CRASH
    who = rng.choice([*(env.name for env in envs), "trainer", "trainer"])
    if kind in (Kind.FREEZE, Kind.SECOND):
        who = "trainer"
    lasts = rng.choice((1.0, 10.0, 40.0, 90.0)) * (0.5 + rng.random())
    if kind is Kind.POWER:
        return Fault(at, kind, "api", min(lasts, 40.0), rng.randrange(1, 40))
    return Fault(at, kind, who, lasts)
