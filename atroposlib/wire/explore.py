"""Messages of the routes below /explore: rollouts, groups, tokens, batches, curves.

Unknown is null and never 0. Times are seconds since the epoch; durations end in ``_s``.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class RolloutRow(Struct, kw_only=True):
    """Row of the index: a sequence of a group."""

    gid: int
    row: int
    env: str | None = None
    item: str | None = None
    group_id: str | None = None
    batch_no: int | None = None
    step: int | None = None
    version_min: int | None = None
    version_max: int | None = None
    arrived_version: int | None = None
    staleness: int | None = None  # policy version at arrival minus version_min
    reward: float | None = None
    advantage: float | None = None
    n_tokens: int | None = None
    n_trained: int | None = None
    turns: int | None = None
    tool_calls: int | None = None
    finish_reason: str | None = None
    outcome: str | None = None
    logprob_mean: float | None = None
    diff_mean: float | None = None  # trainer minus sampler, per token
    diff_max: float | None = None
    clipped_share: float | None = None
    arrived: float | None = None
    generate_s: float | None = None
    state: str | None = None
    why: str | None = None  # reason why the row had no effect


class ListedRow(RolloutRow, kw_only=True):
    """Row of a page, with the beginning of its answer if the request asks for it."""

    answer: str | None = None


class Counted(Struct):
    """Number of rows; a lower bound unless ``exact``."""

    n: int
    exact: bool


class RolloutPage(Struct):
    """GET /explore/rollouts. ``next`` is the value of ``after`` for the next page."""

    rows: list[ListedRow]
    next: str | None
    counted: Counted


class LifeEvent(Struct):
    """A change of state of a group: posted, leased, acked, committed."""

    event: str
    at: float | None


class GroupRow(RolloutRow, kw_only=True):
    """A rollout with what its environment reported, and the beginning of its texts."""

    metrics: dict[str, float] = {}
    timings: dict[str, float] = {}  # s
    judge: str | None = None
    prompt: str | None = None
    completion: str | None = None


class GroupView(Struct, kw_only=True):
    """GET /explore/groups/{gid}. ``n_bytes`` and texts are null once the bytes are freed."""

    gid: int
    env: str | None
    item: str | None
    group_id: str | None
    state: str | None
    batch_no: int | None
    step: int | None
    n_bytes: int | None
    media: str | None
    archived: bool
    baseline: float | None  # mean reward
    spread: float | None  # standard deviation of the rewards
    life: list[LifeEvent]
    rows: list[GroupRow]


class TokenColumns(Struct, kw_only=True):
    """Columns of tokens, of equal length. Flags: bit 1 clipped, 2 version-masked, 4 filtered."""

    id: list[int]
    text: list[str] | None = None
    trained: list[int]
    logprob: list[float] | None = None
    trainer_logprob: list[float | None] | None = None
    version: list[int] | None = None
    advantage: list[float | None] | None = None
    flags: list[int] | None = None


class RowView(Struct, kw_only=True, rename={"start": "from"}):
    """GET /explore/groups/{gid}/rows/{row}: tokens from ``start`` on, and messages as posted."""

    gid: int
    row: int
    n_tokens: int
    start: int
    to: int
    tokenizer: str | None = None
    messages: list[dict[str, Any]] | None = None
    images: list[str] = []  # data URLs, with the first tokens only
    metadata: dict[str, Any] = {}
    columns: TokenColumns


class EnvPart(Struct):
    """An environment's part of a batch. Its share, of tokens over time, is in GET /status."""

    env: str | None
    sequences: int


class BatchView(Struct, kw_only=True):
    """Batch of the ledger. ``staleness`` counts sequences by versions of lag."""

    no: int
    step: int | None = None
    state: str | None = None
    epoch: int | None = None
    generation: int | None = None
    tries: int | None = None
    lease_until: float | None = None
    world_size: int | None = None
    ranks: list[int] = []  # ranks that acked
    n_seq: int | None = None
    groups: int = 0
    min_version: int | None = None
    envs: list[EnvPart] = []
    staleness: dict[str, int] = {}
    claimed: float | None = None
    acked: float | None = None


class Member(Struct):
    """A group of a batch."""

    gid: int
    env: str | None
    item: str | None
    n_seq: int
    reward_mean: float | None
    reward_std: float | None


class BatchDetail(BatchView, kw_only=True):
    """GET /explore/batches/{no}. ``pinned`` groups stay beyond the bound of the archive."""

    members: list[Member]
    pinned: int = 0


class BatchPage(Struct):
    """GET /explore/batches, the newest first."""

    batches: list[BatchView]
    next: str | None


class Curve(Struct):
    """Curve: (step, value)."""

    key: str
    env: str | None
    source: Literal["rollup", "trainer", "env"]
    points: list[tuple[int, float | None]]


class Curves(Struct):
    """GET /explore/curves. ``keys`` lists all available keys."""

    keys: list[str]
    series: list[Curve]


class Bin(Struct, rename={"start": "from"}):
    """Bin of a histogram, [from, to)."""

    start: float
    to: float
    n: int


class Histogram(Struct):
    """GET /explore/histogram; ``nulls`` are rows without the field.

    Of more than 10,000 rows ``sampled`` counts some from all parts of the run.
    """

    field: str
    bins: list[Bin]
    nulls: int
    sampled: bool = False


class RunEntry(Struct, kw_only=True):
    """A run whose groups are available."""

    run_id: str
    path: str | None
    live: bool
    state: str | None
    steps: int | None
    groups: int
    rollouts: int
    bytes: int | None
    tokenizer: str | None
    tokenizer_found: bool
    envs: list[str]
    # package, version and digest of environments that registered with a source, by name
    sources: dict[str, dict[str, str]] = {}


class Runs(Struct):
    """GET /explore/runs."""

    runs: list[RunEntry]


class EventEntry(Struct):
    """A stored event."""

    id: str
    kind: str
    at: float
    fields: dict[str, Any]


class EventPage(Struct):
    """GET /explore/events, the oldest first."""

    events: list[EventEntry]
    next: str | None


class VersionAt(Struct):
    """A policy version, and when all servers held it."""

    version: int
    at: float


class ServerWeights(Struct):
    """A version that an inference server reported, and the first time."""

    name: str
    version: int
    at: float


class Publish(Struct):
    """Durations (s) of a publish of weights."""

    version: int
    at: float
    publish_s: float | None
    check_s: float | None


class Weights(Struct):
    """GET /explore/weights, in order of time; ``servers`` has a line per server and version."""

    versions: list[VersionAt]
    servers: list[ServerWeights]
    publishes: list[Publish]


class AccountLine(Struct, kw_only=True):
    """Tokens and samples of an end state of an environment, by version and step if asked."""

    state: str
    tokens: int
    samples: int
    env: str | None = None
    version: int | None = None
    step: int | None = None


class RunAccount(Struct, kw_only=True):
    """GET /explore/account. ``generated + supplied`` is the sum of ``lines`` plus ``unknown``."""

    generated: int  # tokens that servers returned
    supplied: int  # trained tokens that no server returned
    trained: int
    useful: float | None  # trained / generated; None: nothing was generated
    moving: int  # tokens in flight, queued, leased or journalled
    unknown: int  # posted tokens that the archive does not list; 0 at rest
    processes: int  # processes with a report
    lines: list[AccountLine]
