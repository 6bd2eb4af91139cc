"""Balance sheet of tokens: what processes report, and what GET /explore/account returns.

Each token that an inference server returned is in exactly one end state:

    trained        in a trained row, and trained
    no_gradient    in a trained row whose advantages are all 0
    masked         returned for a posted row, and not trained in it
    dropped/...    of a sample or group that is not trained, by reason
    evaluated      of an evaluation
    helper         of a judge, a teacher, or a call outside of any sample
    queued, leased posted, not trained yet
    journalled     finished, kept by the journal of an environment, not sent yet
    in_flight      of a sample that has not ended
    discarded/...  lost on the way, by reason
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from atroposlib.wire.messages import EnvIdentifier
from atroposlib.wire.numbers import Int64

POSTED = "posted"  # accepted by the rollout API, which knows the end state
SUPPLIED = "supplied"  # trained tokens that no server returned; not an end state
MASKED_STATE, EVALUATED, HELPER = "masked", "evaluated", "helper"
IN_FLIGHT, JOURNALLED, RECOVERED = "in_flight", "journalled", "recovered"
TRAINED, NO_GRADIENT, QUEUED, LEASED = "trained", "no_gradient", "queued", "leased"
LOST = "discarded/lost_with_its_process"
OLDER_VERSIONS = -2  # stands for all versions older than those reported apart; -1: unknown
MAX_COUNTS = 4096


def dropped(reason: str) -> str:
    """The end state of dropped samples."""
    return f"dropped/{reason}"


def discarded(reason: str) -> str:
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
    processes: int  # that reported
    lines: list[AccountLine]
