"""Reports of participants: heartbeats, /status with staleness and shares, steps, drops."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from atroposlib.wire.directory import Announcement, without_false
from atroposlib.wire.messages import EnvIdentifier, Natural, SteeredState
from atroposlib.wire.numbers import Int64

Role = Literal["trainer", "env", "inference", "tool"]
MOSTLY_DROPPED = "rollout, most groups dropped"  # a phase that views show as a warning


Count = Annotated[Int64, Field(ge=0)]


class ServerState(BaseModel):
    """An inference server as seen by a process that calls it."""

    model_config = ConfigDict(extra="forbid")
    url: str = Field(max_length=200)
    silent_s: float | None = None  # time without an answer; None: it answers
    running: Count = 0  # requests of this process
    waiting: Count = 0  # requests of this process without a slot
    version: Int64 | None = None  # newest policy version of its tokens
    tokens_per_s: float | None = None  # generated for this process lately
    paused: bool = False  # it answers, and generates nothing: a publish, or a person
    held: bool = False  # an evaluation of the trainer keeps it at a version: no rollouts

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_false(write(self), "held")


# Cause of a wait, the outer cause first: while the API is absent, nothing else can go on.
WaitCause = Literal[
    "api", "server", "trainer", "batch", "groups", "failures", "weights", "other"
]
WAIT_CAUSES: tuple[WaitCause, ...] = get_args(WaitCause)
MAX_WAITS = 16
MAX_WAIT_CHARS = 400  # bound of a reason


class WaitReport(BaseModel):
    """A wait of a process. A process may have several at once."""

    model_config = ConfigDict(extra="forbid")
    cause: WaitCause
    on: str = Field(max_length=MAX_WAIT_CHARS)  # what, and whom, it waits for
    age_s: float = Field(ge=0, allow_inf_nan=False)

    @property
    def depth(self) -> int:
        """Place of the cause from the outside; the sort key of waits."""
        return WAIT_CAUSES.index(self.cause)


class Process(BaseModel):
    """Phase of a process and, if it waits, the reason."""

    model_config = ConfigDict(extra="forbid")
    role: Role
    name: str = Field(max_length=200)
    phase: str = Field(max_length=200)  # e.g. "training", "rollout", "publishing weights"
    waiting_on: str | None = Field(None, max_length=MAX_WAIT_CHARS)  # the outer wait, in words
    waits: Annotated[list[WaitReport], Field(max_length=MAX_WAITS)] = []  # outer cause first
    details: dict[str, float | Int64 | str] = {}  # "ended" in the last report of a process


class Heartbeat(Process):
    """POST /heartbeat: a process, and the inference servers that it calls."""

    servers: Annotated[list[ServerState], Field(max_length=1024)] = []
    announces: Announcement | None = None  # entry of GET /servers, for role inference

    @model_validator(mode="after")
    def _only_servers_announce(self) -> Heartbeat:
        if self.announces is not None and self.role != "inference":
            raise ValueError(
                "announces: only a heartbeat of role inference announces a server"
            )
        return self


class Participant(Process):
    """The last heartbeat of a process, or the reports about an inference server."""

    age_s: float


class Lag(BaseModel):
    """Lag of groups behind the policy, in policy versions; 0 is on-policy."""

    mean: float
    p95: float
    max: float


class StalenessReport(BaseModel):
    """Over the last delivered groups that carry versions; see :class:`RunStatus`.

    ``in_flight`` is the lag between sampling and arrival, ``in_queue`` between arrival and
    the claim. Their sum is the staleness at training. None: no group with versions yet.
    """

    groups: int
    in_flight: Lag | None = None
    in_queue: Lag | None = None


class EnvShare(BaseModel):
    """Target and realised share of an environment in the trained tokens, 0..1.

    ``env_id`` None stands for all groups without an environment.
    """

    env_id: int | None
    name: str
    weight: float
    asked: float  # share of the weights of live environments; 0 if disconnected or silent
    realised: float  # share of the tokens delivered for training so far
    connected: bool = True
    state: SteeredState = "running"
    max_rollouts: int | None = None  # limit of each process by an operator
    own_weight: float | None = None  # registered weight, where an operator set another
    buffered: int = 0  # sequences that wait for the rest of their group


class OpenBatch(BaseModel):
    """A batch that is delivered and not acked."""

    no: int
    sequences: int
    deliveries: int
    lease_s: float  # time until it is delivered again


class FindingReport(BaseModel):
    """Cause of a lack of progress, with evidence and remedy; ``rule`` as in the documentation."""

    rule: int
    key: str
    severity: Literal["stuck", "waiting", "warning"]
    cause: str
    evidence: list[str]
    remedy: str
    at: float  # s since the epoch


class ProcessReport(BaseModel):
    """Present activity of a process, or its silence."""

    role: str
    name: str  # the name in its heartbeats, new at each start of an environment
    label: str  # the name that views show
    state: Literal["works", "waits", "silent", "ended"]
    text: str


class TokenReport(BaseModel):
    """Balance of tokens at this process; GET /explore/account has its lines."""

    age_s: float
    generated: int  # tokens that servers returned
    trained: int
    moving: int
    unknown: int  # posted tokens that the archive does not list; 0 at rest
    useful: float | None = None  # trained / generated
    # trained share of the tokens whose end is known, without evaluations and judges;
    # the last steps, and the run before these; None before there are enough steps
    useful_recent: float | None = None
    useful_usual: float | None = None
    recent_losses: dict[str, float] = {}  # largest shares of the last steps, by end state


class VerdictReport(BaseModel):
    """State of a run, as every surface shows it.

    ``waiting`` is as it should be. A run that is ``healthy`` may have warnings in ``findings``.
    """

    state: Literal["healthy", "waiting", "stuck", "done"]
    line: str  # the cause, or what goes on
    remedy: str = ""
    findings: list[FindingReport] = []  # strongest first
    processes: list[ProcessReport] = []
    groups_per_s: float = 0.0  # accepted lately
    tokens_per_s: float = 0.0


class RunStatus(BaseModel):
    """Reply to /status. The first two keys are the keys of the original."""

    current_step: int  # starting step plus the batches delivered to this trainer
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
    stalled: list[str] = []  # processes without a sign of life, the longest silence first
    batches_open: int = 0  # delivered and not acked
    open_batches: list[OpenBatch] = []  # first open batches
    batches_dead: int = 0  # delivered too often; their groups are kept for inspection
    dropped_groups: int = 0  # too stale, never completed, or dropped by hand
    dead_groups: int = 0
    retained_bytes: int = 0  # stored payloads, until they are committed
    disk_bytes: int = 0  # stored payloads, also retired; 0 in stores without an archive
    max_bytes: int = 0  # bound on retained_bytes
    index_skipped: int = 0  # records that the index of rollouts took later, or not at all
    index_unfit: int = 0  # records with values that the index cannot hold
    # failures of background threads, which went on, by name
    thread_failures: dict[str, int] = {}
    connections_refused: int = 0  # connections beyond --max-connections of this process
    staleness: StalenessReport | None = None
    shares: list[EnvShare] = []
    warnings: list[str] = []  # groups that no batch can hold
    num_steps: int | None = None  # total of the trainer
    ended_step: int | None = None  # its last step, once it reported the end of the run
    ages_s: dict[str, float] = {}  # since the last event of each kind at this process
    usual_step_s: float | None = None  # median between the last acks at this process
    # groups with a refuted or absent claim at this process: "refused", "warned"
    uncertified: dict[str, int] = {}
    refusal: str | None = None  # why posts were refused in the last 30 s
    tokens: TokenReport | None = None
    verdict: VerdictReport | None = None


# --- reports, all optional: what explorers show besides the groups ---------------------------


class StepReport(BaseModel):
    """POST /steps: numbers of a step of the trainer, or of an environment with its id."""

    role: Literal["trainer", "env"]
    step: Natural
    values: Annotated[
        dict[
            Annotated[str, Field(max_length=200)], Annotated[float, Field(allow_inf_nan=False)]
        ],
        Field(max_length=256),
    ]
    batch_no: Natural | None = None  # batch of the trainer's step
    env_id: Int64 | None = None
    run_id: str | None = None

    @classmethod
    def of(cls, numbers: Mapping[str, float], **fields: Any) -> StepReport:
        """A report of the first numbers that have a place in it; they are finite."""
        fitting = (item for item in numbers.items() if len(item[0]) <= 200)
        return cls(values=dict(islice(fitting, 256)), **fields)


class DropReport(EnvIdentifier):
    """POST /drops, in the query: groups that an environment dropped since its last report.

    The body may hold a dropped group, in the form of POST /scored_data.
    """

    reason: str = Field(pattern=r"^[a-z_]{1,40}$")  # e.g. "same_scores"
    count: Annotated[Natural, Field(ge=1)]


# --- balance sheet of tokens ------------------------------------------------------------
#
# Each token that an inference server returned has a single end state:
#
#     trained        in a trained row, and trained
#     no_gradient    in a trained row whose advantages are all 0
#     masked         returned for a posted row, and not trained in it
#     dropped/...    of a sample or group that is not trained, by reason
#     evaluated      of an evaluation
#     helper         of a judge, a teacher, or a call outside of any sample
#     queued, leased posted, not trained yet
#     journalled     finished, kept by the journal of an environment, not sent yet
#     in_flight      of a sample that has not ended
#     discarded/...  lost on the way, by reason

POSTED = "posted"  # accepted by the rollout API, which knows the end state
SUPPLIED = "supplied"  # trained tokens that no server returned; not an end state
MASKED_STATE, EVALUATED, HELPER = "masked", "evaluated", "helper"
IN_FLIGHT, JOURNALLED, RECOVERED = "in_flight", "journalled", "recovered"
TRAINED, NO_GRADIENT, QUEUED, LEASED = "trained", "no_gradient", "queued", "leased"
LOST = "discarded/lost_with_its_process"
OLDER_VERSIONS = -2  # all versions older than the versions reported apart; -1: unknown
MAX_COUNTS = 4096


def drop_state(reason: str) -> str:
    """The end state of dropped samples."""
    return f"dropped/{reason}"


def discard_state(reason: str) -> str:
    """The end state of tokens that no sample received."""
    return f"discarded/{reason}"


class StateCount(NamedTuple):
    """Tokens and samples of an end state."""

    tokens: int
    samples: int


class AccountCount(BaseModel):
    """Counter of a version and an end state; ``samples`` 0 for calls outside of samples."""

    model_config = ConfigDict(extra="forbid")
    version: Annotated[Int64, Field(ge=OLDER_VERSIONS)]
    state: Annotated[str, Field(max_length=100, pattern=r"^[\w.\-]+(/[\w.\-]+)?$")]
    tokens: Int64
    samples: Int64 = 0


class AccountReport(EnvIdentifier):
    """POST /account: all counters of a process since the start of the run.

    ``instance`` is a name per process and run; of its reports the highest ``sequence`` counts.
    """

    instance: Annotated[str, Field(min_length=1, max_length=64)]
    sequence: Annotated[Int64, Field(ge=0)]
    ended: bool = False  # the last report of the process
    counts: Annotated[list[AccountCount], Field(max_length=MAX_COUNTS)]
