"""The record: every type that crosses HTTP, in the order in which data flows.

    Registration -> RegisterEnv -> ScoredData -> ClaimedBatch -> PolicyVersion

Control messages are pydantic models: small, validated by FastAPI, shown in /docs.
Scored groups are msgspec structs: a group holds 10^5 numbers and pydantic would build a
validator call for each. The original field names stay; what is new is optional, so
old producers and old consumers keep working.

Conventions of a row (one sequence of T tokens), checked by :func:`validate_group`:

    tokens             [1, 5, 9, 7]       prompt and completion, whole
    masks              [-100, -100, 9, 7] -100 where not trained, else the token id
    inference_logprobs [1.0, 1.0, -.2, -.9]  1.0 where masked, else log p of the sampler
    versions           [-1, -1, 3, 3]     policy version that sampled it, -1 where masked
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from atroposlib.errors import InvalidGroup

MASKED = -100  # label of a position that is not trained
MASKED_LOGPROB = 1.0  # impossible as a logprob, so it cannot be mistaken for one
MASKED_VERSION = -1

Outcome = Literal[
    "ok", "truncated", "env_error", "judge_error", "infra_error", "timeout", "cancelled"
]
TRAINABLE_OUTCOMES = frozenset({"ok", "truncated"})
Role = Literal["trainer", "env", "inference", "tool"]


# --- 1. the trainer opens the run ---------------------------------------------------


class Registration(BaseModel):
    """POST /register. ``batch_size`` counts sequences, not groups.

    Example: {"wandb_group": "", "wandb_project": "", "batch_size": 64, "max_token_len": 512,
    "checkpoint_dir": "ckpt", "save_checkpoint_interval": 10, "starting_step": 0, "num_steps": 40}
    """

    wandb_group: str
    wandb_project: str
    batch_size: int
    max_token_len: int
    checkpoint_dir: str
    save_checkpoint_interval: int
    starting_step: int
    num_steps: int


class Registered(BaseModel):
    """Reply to /register: ``generation`` fences every trainer that registered before."""

    uuid: int
    generation: int
    run_id: str


# --- 2. environments join -----------------------------------------------------------


class RegisterEnv(BaseModel):
    """POST /register-env. ``min_batch_allocation`` is a share of each batch, 0..1."""

    max_token_length: int
    desired_name: str
    weight: float
    group_size: int
    min_batch_allocation: float | None = None


class EnvRegistered(BaseModel):
    """Reply to /register-env once the run has started; ``run_id`` tells runs apart."""

    status: str = "success"
    env_id: int
    run_id: str
    wandb_name: str
    checkpoint_dir: str
    starting_step: int
    checkpoint_interval: int
    num_steps: int


class EnvIdentifier(BaseModel):
    """Who is calling. A ``run_id`` of an earlier run is answered 404, never aliased."""

    env_id: int
    run_id: str | None = None


class EnvStatus(BaseModel):
    """Reply to /status-env; queue sizes are in groups of the asking environment."""

    current_step: int
    queue_size: int
    unallocated_fraction: float
    self_queue_size: int
    max_group_size: int
    env_weight: float
    policy_version: int = 0


# --- 3. a scored group --------------------------------------------------------------


class ScoredData(msgspec.Struct, kw_only=True):
    """One group: G sequences that answer the same prompt, with their scores.

    Example: tokens [[1, 5, 9]], masks [[-100, -100, 9]], scores [1.0],
    inference_logprobs [[1.0, 1.0, -0.2]], versions [[-1, -1, 3]], group_id "gsm8k/17".
    """

    tokens: list[list[int]]  # (G, T_g)
    masks: list[list[int]]  # (G, T_g)
    scores: list[float]  # (G,)
    advantages: list[list[float]] | None = None  # (G, T_g); other lengths are marked
    ref_logprobs: list[list[float]] | None = None  # (G, T_g)
    messages: list[list[dict[str, Any]]] | None = None  # (G, turns)
    generation_params: dict[str, Any] | None = None
    inference_logprobs: list[list[float]] | None = None  # (G, T_g)
    overrides: list[dict[str, Any]] | None = None  # (G,)
    group_overrides: dict[str, Any] | None = None
    images: Any = None
    env_id: int | None = None
    distill_token_ids: list[list[list[int]]] | None = None  # (G, T_g, K)
    distill_logprobs: list[list[list[float]]] | None = None  # (G, T_g, K)
    versions: list[list[int]] | None = None  # (G, T_g)
    finish_reasons: list[str | None] | None = None  # (G,)
    outcomes: list[Outcome] | None = None  # (G,)
    group_id: str | None = None  # prompt identity; normalisation never uses row order
    idempotency_key: str | None = None  # env instance + counter; retries are absorbed
    metadata: dict[str, Any] | None = None  # item id, env, sampling, timings, metrics


PER_SEQUENCE = ("scores", "messages", "overrides", "finish_reasons", "outcomes")
PER_TOKEN = (
    "inference_logprobs",
    "ref_logprobs",
    "versions",
    "distill_token_ids",
    "distill_logprobs",
)
_INT32_MAX = 2**31 - 1


def validate_group(group: ScoredData, max_rows: int = 4096) -> None:
    """Refuse a group that could not be trained on.

    Raises:
        InvalidGroup: names the field and the index, never the value.
    """
    rows = len(group.tokens)
    if not 1 <= rows <= max_rows:
        raise InvalidGroup("tokens", "", f"a group has 1 to {max_rows} rows, not {rows}")
    _require_length("masks", "", group.masks, rows)
    for name in PER_SEQUENCE:
        if (values := getattr(group, name)) is not None:
            _require_length(name, "", values, rows)
    for g, row in enumerate(group.tokens):
        if not row:
            raise InvalidGroup("tokens", f"[{g}]", "an empty sequence cannot be trained on")
        if min(row) < 0 or max(row) > _INT32_MAX:
            raise InvalidGroup("tokens", f"[{g}]", "token ids lie in 0 .. 2^31 - 1")
        _require_length("masks", f"[{g}]", group.masks[g], len(row))
    _require_finite("scores", "", group.scores)
    for name in PER_TOKEN:
        _validate_per_token(name, getattr(group, name), group.tokens)
    _validate_messages(group.messages)


def _validate_per_token(
    name: str, values: list[list[Any]] | None, tokens: list[list[int]]
) -> None:
    if values is None:
        return
    _require_length(name, "", values, len(tokens))
    for g, row in enumerate(values):
        _require_length(name, f"[{g}]", row, len(tokens[g]))
        if name.endswith("logprobs") and name != "distill_logprobs":
            _require_finite(name, f"[{g}]", row)


def _validate_messages(messages: list[list[dict[str, Any]]] | None) -> None:
    for g, turns in enumerate(messages or []):
        for i, message in enumerate(turns):
            if "role" not in message or "content" not in message:
                raise InvalidGroup(
                    "messages", f"[{g}][{i}]", "a message has the keys role and content"
                )


def _require_length(name: str, index: str, values: Sequence[Any], length: int) -> None:
    if len(values) != length:
        raise InvalidGroup(name, index, f"{len(values)} entries where {length} are expected")


def _require_finite(name: str, index: str, values: Sequence[float]) -> None:
    for i, value in enumerate(values):
        if not math.isfinite(value):
            raise InvalidGroup(name, f"{index}[{i}]", "not a finite number")


# --- 4. the trainer takes a batch ---------------------------------------------------


class ClaimRequest(BaseModel):
    """POST /batches/claim. ``wait_s`` holds the call until a batch forms, at most 30 s."""

    generation: int
    lease_s: float = Field(600.0, gt=0, le=86_400)
    wait_s: float = Field(0.0, ge=0, le=30)


class ClaimedBatch(msgspec.Struct, kw_only=True):
    """An immutable numbered batch under a lease, or the reason why there is none.

    Example: {"batch_no": 7, "epoch": 1, "batch": [{...}], "blocked_reason": null}
    """

    batch_no: int | None = None
    epoch: int | None = None  # rises with every delivery of the same batch
    batch: list[ScoredData] | None = None
    blocked_reason: str | None = None


class AckRequest(BaseModel):
    """POST /batches/{no}/ack: the batch was trained on; it is never delivered again."""

    generation: int
    epoch: int


# --- 5. new weights, and who waits for what -----------------------------------------


class PolicyVersion(BaseModel):
    """POST /policy_version: every server now holds this version. Never decreases."""

    version: int = Field(ge=0)


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


class RunStatus(BaseModel):
    """Reply to /status. The first two keys are the original's; the rest explains them."""

    current_step: int
    queue_size: int
    state: str
    run_id: str
    policy_version: int
    queued_sequences: int
    leased_sequences: int
    buffered_sequences: int
    batches_acked: int
    blocked_reason: str | None
    participants: list[Participant]
