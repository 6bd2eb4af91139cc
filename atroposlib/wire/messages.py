"""Messages of the HTTP API, in the order of the data flow.

    Registration -> RegisterEnv -> ScoredData -> ClaimedBatch -> PolicyVersion

Control messages are pydantic models: small, validated by FastAPI, shown in /docs.
Scored groups are msgspec structs: a group holds 10^5 numbers, and pydantic would call a
validator for each. The field names of the original are kept and new fields are optional, so
old producers and old consumers keep working.

Conventions of a row (a sequence of T tokens), checked by :func:`wire.columns.from_group`:

    tokens             [1, 5, 9, 7]       prompt and completion, whole
    masks              [-100, -100, 9, 7] -100 where not trained, else the token id
    inference_logprobs [1.0, 1.0, -.2, -.9]  1.0 where masked, else log p of the sampler
    versions           [-1, -1, 3, 3]     policy version that sampled it, -1 where masked
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic refuses that of Python below 3.12

from atroposlib.errors import InvalidGroup
from atroposlib.wire.routing import RoutedExperts

MASKED = -100  # label of a position that is not trained
MASKED_LOGPROB = 1.0  # above 0, so it cannot be a logprob
MAX_LOGPROB = 1e-3  # rounding of bfloat16 puts the logprob of a sure token a little above 0
MASKED_VERSION = -1

_INT32_MAX = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=_INT32_MAX)]
Natural = Annotated[int, Field(ge=0, le=_INT32_MAX)]
Whole = Annotated[int, Field(ge=-_INT32_MAX, le=_INT32_MAX)]
# Bounded, since the API saves labels with every change of the run.
Label = Annotated[str, Field(max_length=4096)]
# axolotl's plugin sends null for a name that its configuration leaves out, and reads no refusal.
OptionalLabel = Annotated[Label, BeforeValidator(lambda value: "" if value is None else value)]

Outcome = Literal[
    "ok", "truncated", "env_error", "judge_error", "infra_error", "timeout", "cancelled"
]
SteeredState = Literal["running", "draining", "paused"]  # an operator sets the state
TRAINABLE_OUTCOMES = frozenset({"ok", "truncated"})
# Treatment of tokens older than ``max_staleness`` by a claim: keep (deliver unchanged), mask
# (deliver with the stale tokens masked), drop (free and count the whole group).
StalenessPolicy = Literal["keep", "mask", "drop"]
CertificatePolicy = Literal["off", "warn", "refuse"]


# --- 1. the trainer opens the run ---------------------------------------------------


class Registration(BaseModel):
    """POST /register. ``batch_size`` counts sequences, not groups.

    Example: {"wandb_group": "", "wandb_project": "", "batch_size": 64, "max_token_len": 512,
    "checkpoint_dir": "ckpt", "save_checkpoint_interval": 10, "starting_step": 0, "num_steps": 40}
    """

    wandb_group: OptionalLabel
    wandb_project: OptionalLabel
    batch_size: int = Field(ge=1, le=2**24)  # the exact fill works on sets of numbers up to it
    max_token_len: Whole
    checkpoint_dir: Label
    save_checkpoint_interval: Whole
    starting_step: Natural
    num_steps: Whole
    # Beyond the original; the defaults are the behaviour of the original.
    commits: bool = False  # True: keep acked batches until POST /batches/{no}/commit
    max_staleness: Natural | None = None  # policy versions; None: no bound
    staleness_policy: StalenessPolicy = "keep"  # treatment of older groups
    # The last batch in its checkpoint (0: none). If the run cannot be rewound to it, the
    # registration is refused and no trainer is fenced.
    holds: Natural | None = None
    # Identity of the process. With a ``life``, a random word that its heartbeats carry in
    # their details, it is refused while another trainer is alive, unless ``take_over``.
    life: Label = ""
    host: Label = ""
    pid: Natural = 0
    run_name: Label = ""
    take_over: bool = False
    tokenizer: Label | None = None  # name or directory; shows tokens as text
    vocab_size: Count | None = None  # token ids lie below it
    # Treatment of groups whose certificate has a refuted or absent claim, at their arrival.
    require_certificate: CertificatePolicy = "off"
    # A repeated id changes nothing: a late copy must not fence the trainer that sent it.
    register_id: Annotated[str, Field(max_length=128)] = ""


class Registered(BaseModel):
    """Reply to /register: ``generation`` fences every trainer that registered before.

    ``incarnation`` is the number of this trainer's life in the run, ``starts`` the first
    versions of the last lives, this life included (``wire.lineage``). Both are 0 and empty
    from an API that does not count lives.
    """

    uuid: int
    generation: int
    run_id: str
    incarnation: int = 0
    starts: list[int] = []


# --- 2. environments join -----------------------------------------------------------


class EnvSource(BaseModel):
    """Origin of an environment; a file of no package has a digest only."""

    package: Annotated[str, Field(max_length=256)] = ""
    version: Annotated[str, Field(max_length=128)] = ""
    digest: Annotated[str, Field(max_length=128)] = ""  # digest of its module and data


class RegisterEnv(BaseModel):
    """POST /register-env. ``min_batch_allocation`` is a share of each batch, 0..1."""

    max_token_length: int = Field(ge=-1, le=_INT32_MAX)
    desired_name: str = Field(max_length=256)
    weight: float = Field(ge=-1e12, le=1e12)
    group_size: Count
    min_batch_allocation: float | None = Field(None, ge=0.0, le=1.0)
    tokenizer: Label | None = None  # tokenizer that the trainer uses
    join_id: Annotated[str, Field(max_length=128)] = ""  # repeated: the same environment
    # Place in a launcher's plan; a later life of the place replaces the earlier one at once.
    seat: Annotated[str, Field(max_length=128)] = ""
    source: EnvSource | None = None


class EnvRegistered(BaseModel):
    """Reply to /register-env once the run has started; ``run_id`` identifies the run.

    The API of the original has no ``run_id``.
    """

    status: str = "success"
    env_id: int
    run_id: str = ""
    wandb_name: str
    checkpoint_dir: str
    starting_step: int
    checkpoint_interval: int
    num_steps: int


class EnvIdentifier(BaseModel):
    """Environment of a request. A ``run_id`` of an earlier run gets 404."""

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
    max_staleness: int | None = None  # only if the trainer set a bound: then POST /admission
    batches_open: int | None = None  # only if several are delivered without an ack
    incarnation: int | None = None  # life of the trainer that announced the version
    steered: SteeredState | None = None  # only if an operator paused or drains it
    max_rollouts: int | None = None  # only if an operator limits the rollouts


class SteerRequest(BaseModel):
    """POST /steer: what an operator sets for an environment; absent fields stay as they are.

    Example: {"env": "math", "state": "paused"}, and back: {"env": "math", "state": "running"}
    """

    model_config = ConfigDict(extra="forbid")
    env: Label  # its name, with or without the number that the API adds
    state: SteeredState = "running"
    # None: that of its registration
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    max_rollouts: Count | None = None  # limit of each process; None: its own


# --- 3. a scored group --------------------------------------------------------------

# The distribution whose logprobs a server reports: before the temperature, after it, or after
# it and after top-p, top-k and min-p.
LogprobKind = Literal["raw", "scaled", "truncated"]


# The sampling parameters of a span with the values that change nothing: the only list.
# A cut leaves a part of the vocabulary, a penalty changes the weights of the tokens.
NEUTRAL_CUTS = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}
NEUTRAL_PENALTIES = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
NEUTRAL_SAMPLING = {"temperature": 1.0, **NEUTRAL_CUTS, **NEUTRAL_PENALTIES}


def cuts_in_force(sampling: Mapping[str, Any]) -> dict[str, float]:
    """The cuts that leave tokens out. Example: {"top_p": 0.9, "top_k": 0} -> {"top_p": 0.9}."""
    return {
        name: value
        for name, neutral in NEUTRAL_CUTS.items()
        if (value := type(neutral)(sampling.get(name, neutral))) != neutral
        and (value > 0 or name == "top_p")
    }


class _Span(TypedDict):
    start: int
    end: int
    temperature: float  # 0: greedy


class SampledSpan(_Span, total=False):
    """Sampling of the tokens [start, end) of a row: a call to the model.

    Example: {"start": 2, "end": 4, "temperature": 0.7, "top_p": 0.95, "logprobs": "scaled",
    "finish_reason": "stop"}. Absent: top_p 1, top_k -1, min_p 0, repetition_penalty 1, the other
    penalties 0, no constraints; logprobs and finish_reason unknown.
    """

    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    constraints: list[str]  # names of parameters that forbid or prefer tokens: "logit_bias"
    logprobs: LogprobKind
    finish_reason: str
    seal: str  # digests of the session, see ``atroposlib.certificate.seals``


class ScoredData(msgspec.Struct, kw_only=True):
    """A group of G sequences for the same prompt, with their scores.

    Example: tokens [[1, 5, 9]], masks [[-100, -100, 9]], scores [1.0],
    inference_logprobs [[1.0, 1.0, -0.2]], versions [[-1, -1, 3]], group_id "gsm8k/17".
    """

    tokens: list[list[int]]  # (G, T_g)
    masks: list[list[int]]  # (G, T_g)
    scores: list[float]  # (G,)
    advantages: list[list[float]] | None = None  # (G, T_g); a different length gets a mark
    ref_logprobs: list[list[float]] | None = None  # (G, T_g)
    messages: list[list[dict[str, Any]]] | None = None  # (G, turns)
    generation_params: dict[str, Any] | None = None
    inference_logprobs: list[list[float]] | None = None  # (G, T_g)
    overrides: list[dict[str, Any]] | None = None  # (G,)
    group_overrides: dict[str, Any] | None = None
    images: Any = None
    env_id: int | None = None
    incarnation: int | None = None  # oldest life of the trainer among ``versions``
    distill_token_ids: list[list[list[int]]] | None = None  # (G, T_g, K)
    distill_logprobs: list[list[list[float]]] | None = None  # (G, T_g, K)
    versions: list[list[int]] | None = None  # (G, T_g)
    sampling: list[list[SampledSpan]] | None = None  # (G, calls), ascending
    routed_experts: list[RoutedExperts | None] | None = None  # (G,) of a mixture of experts
    finish_reasons: list[str | None] | None = None  # (G,)
    outcomes: list[Outcome] | None = None  # (G,)
    group_id: str | None = None  # prompt identity; normalisation never uses row order
    idempotency_key: str | None = None  # env instance + counter; repeats are absorbed
    metadata: dict[str, Any] | None = None  # item id, env, metrics; rows: facts of each row
    # set by the API: accepted irregularities, "advantages_length"
    marks: list[str] | None = None


PER_SEQUENCE = ("scores", "messages", "overrides", "sampling", "finish_reasons", "outcomes")
PER_TOKEN = (
    "inference_logprobs",
    "ref_logprobs",
    "versions",
    "distill_token_ids",
    "distill_logprobs",
)


def validate_messages(messages: list[list[dict[str, Any]]] | None) -> None:
    """Reject a message without role or content."""
    for g, turns in enumerate(messages or []):
        for i, message in enumerate(turns):
            if "role" not in message or "content" not in message:
                raise InvalidGroup(
                    "messages", f"[{g}][{i}]", "a message has the keys role and content"
                )


def validate_sampling(sampling: list[list[SampledSpan]], seq_lens: list[int]) -> None:
    """Reject spans that overlap or lie outside of their row."""
    for g, (spans, length) in enumerate(zip(sampling, seq_lens)):
        lasts = [0, *(span["end"] for span in spans)]
        for i, (last, span) in enumerate(zip(lasts, spans)):
            if not last <= span["start"] <= span["end"] <= length or span["temperature"] < 0:
                problem = "spans ascend within the tokens, at temperatures from 0 on"
                raise InvalidGroup("sampling", f"[{g}][{i}]", problem)


# --- 4. the trainer takes a batch ---------------------------------------------------


class ClaimRequest(BaseModel):
    """POST /batches/claim. ``wait_s`` holds the call until a batch forms, at most 30 s."""

    generation: int
    lease_s: float = Field(600.0, gt=0, le=86_400)
    wait_s: float = Field(0.0, ge=0, le=30)
    claim_id: str | None = Field(None, min_length=1, max_length=256)  # repeated: same batch
    world_size: int = Field(1, ge=1, le=4096)  # ranks that will ack
    rank: int | None = Field(None, ge=0)  # deliver only this rank's shard; None: all groups


class ClaimedBatch(msgspec.Struct, kw_only=True):
    """An immutable numbered batch under a lease, or the reason why there is none.

    Example: {"batch_no": 7, "epoch": 1, "batch": [{...}], "blocked_reason": null}
    """

    batch_no: int | None = None
    epoch: int | None = None  # +1 with every delivery of the same batch
    batch: list[ScoredData] | None = None
    blocked_reason: str | None = None


class AckRequest(BaseModel):
    """POST /batches/{no}/ack: the batch was trained on and is not delivered again.

    With a ``rank`` the batch is acked after the requests of all ranks of the claim.
    """

    generation: int
    epoch: int
    rank: int | None = Field(None, ge=0)


class ExtendRequest(BaseModel):
    """POST /batches/{no}/extend: the lease ends ``lease_s`` from now."""

    generation: int
    epoch: int
    lease_s: float = Field(600.0, gt=0, le=86_400)


class CheckpointRequest(BaseModel):
    """POST /batches/{no}/commit and /rewind; ``no`` is the last batch a checkpoint holds.

    Commit: the checkpoint is durable, so payloads up to ``no`` are freed. Rewind: training
    restarts from it, so batches acked after ``no`` are delivered again, in order. A rewind with a
    known ``rewind_id`` changes nothing: a late copy of the request must not deliver trained
    batches again.
    """

    generation: int
    rewind_id: Annotated[str, Field(max_length=128)] = ""


class Committed(BaseModel):
    """Reply to a commit: the number of freed batches.

    ``left_open``, at most 100: batches up to that checkpoint that were claimed without a
    ``claim_id`` and never acked. They are delivered again: the reply to the claim may be lost.
    """

    committed: int
    left_open: list[int] = []


class Rewound(BaseModel):
    """Reply to a rewind. ``gone`` batches after that checkpoint were already committed."""

    replayed: int
    gone: int


# --- admission of rollouts -------------------------------------------------------------

_ADMISSION_ID = AliasChoices("admission_id", "lease_id")


class AdmissionRequest(EnvIdentifier):
    """POST /admission: permission to begin rollouts, so that none is too stale when trained.

    A repeated ``admission_id`` (after a lost reply) gets the same answer with a later end.
    ``lease_id`` is its former name.
    """

    sequences: int = Field(ge=1, le=2**20)
    ttl_s: float = Field(600.0, gt=0, le=86_400)
    admission_id: str | None = Field(
        None, min_length=1, max_length=128, validation_alias=_ADMISSION_ID
    )


class AdmissionReply(BaseModel):
    """``granted`` of the sequences may begin. With 0, repeat the request after a while."""

    admission_id: str
    granted: int
    blocked_reason: str | None = None
    credit_bytes: int  # payload bytes that POST /groups would still take


class AdmissionRelease(BaseModel):
    """POST /admission/release: its rollouts are posted, or given up."""

    admission_id: str = Field(min_length=1, max_length=128, validation_alias=_ADMISSION_ID)


class GroupsReceived(BaseModel):
    """Reply to POST /groups, whose 429 carries Retry-After and ``credit_bytes`` as well."""

    accepted: int  # duplicates included; all groups of the request are durable
    duplicates: int
    buffered: int
    credit_bytes: int
    policy_version: int


# --- 5. new weights; /status is in ``wire.status`` --------------------------------------


class PolicyVersion(BaseModel):
    """POST /policy_version: all servers hold this version. It never decreases.

    It is ignored if the ``incarnation`` is not that of the current trainer. ``ended``: it is the
    last version, and the final model is written; ``/status`` has ``ended_step`` until the next
    trainer.
    """

    version: Natural
    incarnation: Natural | None = None
    ended: bool = False
