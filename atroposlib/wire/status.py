"""The part of the record that says who waits for what; imported from ``atroposlib.wire``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["trainer", "env", "inference", "tool"]


class Heartbeat(BaseModel):
    """POST /heartbeat: what a process does and, if it waits, for what."""

    model_config = ConfigDict(extra="forbid")
    role: Role
    name: str = Field(max_length=200)
    phase: str = Field(max_length=200)  # such as "training", "rollout", "publishing weights"
    waiting_on: str | None = Field(None, max_length=400)
    details: dict[str, float | int | str] = {}


class Participant(Heartbeat):
    """A heartbeat as /status shows it."""

    age_s: float


class Lag(BaseModel):
    """How far groups lagged behind the policy, in policy versions, 0 for on-policy."""

    mean: float
    p95: float
    max: float


class StalenessReport(BaseModel):
    """Over the last delivered groups that carry versions; see :class:`RunStatus`.

    ``in_flight`` passed between sampling and arrival, ``in_queue`` between arrival and
    the claim. Their sum is what the trainer sees. None: no such group yet.
    """

    groups: int
    in_flight: Lag | None = None
    in_queue: Lag | None = None


class EnvShare(BaseModel):
    """What share of the trained tokens an environment asked for, and what it got, 0..1.

    ``env_id`` None stands for all groups that name no environment.
    """

    env_id: int | None
    name: str
    weight: float
    asked: float  # of the live environments' weights; 0 for one that is gone or silent
    realised: float  # of the tokens delivered for training so far
    connected: bool = True


class RunStatus(BaseModel):
    """Reply to /status. The first two keys are the original's; the rest explains them."""

    current_step: int  # starting step plus the batches this trainer was handed
    queue_size: int  # groups queued, leased or buffered
    state: str
    run_id: str
    policy_version: int
    queued_sequences: int
    leased_sequences: int
    buffered_sequences: int
    batches_acked: int
    blocked_reason: str | None
    participants: list[Participant]
    batches_open: int = 0  # handed over and not acked
    batches_dead: int = 0  # delivered too often; their groups wait for inspection
    dropped_groups: int = 0  # too stale to train on
    dead_groups: int = 0
    retained_bytes: int = 0  # of payloads on hand, until they are committed
    max_bytes: int = 0  # the bound on them
    staleness: StalenessReport | None = None
    shares: list[EnvShare] = []
