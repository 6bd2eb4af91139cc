"""Records of the index: a frozen dataclass per kind, which any thread submits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atroposlib.api.codec.row_facts import GroupFacts
from atroposlib.api.common.records import RunRecord


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is shown of a run itself."""

    run_id: str = ""
    live: bool = False
    state: str | None = None
    tokenizer: str | None = None
    envs: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: RunRecord, live: bool = False) -> RunFacts:
        tokenizer = None if run.trainer is None else run.trainer.tokenizer
        names = tuple(env.wandb_name for env in run.envs)
        return cls(run.run_id, live, run.state.value, tokenizer, names)


@dataclass(frozen=True, slots=True)
class RowFacts:
    """The rows of one group at its arrival."""

    gid: int
    env: str | None
    arrived: float | None
    arrived_version: int | None
    state: str | None
    facts: GroupFacts
    batch_no: int | None = None


@dataclass(frozen=True, slots=True)
class BatchFact:
    """A batch of the ledger as it is now, with its groups."""

    no: int
    state: str
    epoch: int
    generation: int
    tries: int
    lease_until: float
    world_size: int
    ranks: str  # that acked, for example "0,2"
    n_seq: int
    min_version: int | None
    gids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupStates:
    """State and batch of groups by gid; None: the ledger has lost the group."""

    states: Mapping[int, tuple[str, int | None] | None]


@dataclass(frozen=True, slots=True)
class NotesFact:
    """What the trainer noted about one row. Arrays cover its trained tokens, little-endian."""

    gid: int
    row: int
    batch_no: int
    advantages: bytes | None = None  # F32
    logprobs: bytes | None = None  # F16, of the policy before the step
    flags: bytes | None = None  # U8: 1 clipped, 2 version-masked, 4 filtered
    advantage: float | None = None  # mean
    diff_mean: float | None = None
    diff_max: float | None = None
    clipped_share: float | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class StepFact:
    """Numbers of one step of the trainer or of an environment."""

    role: str
    name: str
    step: int
    at: float
    values: Mapping[str, float | None]
    batch_no: int | None = None


@dataclass(frozen=True, slots=True)
class DropFact:
    """Groups that an environment dropped, and at most one of them."""

    env: str | None
    reason: str
    dropped: int
    at: float
    media: str | None = None
    sample: bytes | None = None
    facts: GroupFacts | None = None  # of the sample


@dataclass(frozen=True, slots=True)
class EventFact:
    """An event of the API."""

    name: str  # its id in /events
    kind: str
    at: float
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WeightFact:
    """The first report of a version by a server, or (``server`` None) that all hold it."""

    server: str | None
    version: int | None
    at: float


Record = (
    RowFacts
    | BatchFact
    | GroupStates
    | NotesFact
    | StepFact
    | DropFact
    | EventFact
    | WeightFact
)
