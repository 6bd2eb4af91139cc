"""Evidence: two samples of a run and what they show, and the form of a rule over it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

Severity = Literal["stuck", "waiting", "warning"]
Process = Mapping[str, Any]  # a participant of /status
# Processes send heartbeats every 2 s; at load 13 on two cores, up to 6 s apart.
SILENT_S = 15.0
FORGOTTEN_S = 600.0  # then a silent process is history, if a process of its role still runs
PAUSED, NOT_ADMITTED = "paused: queue full", "paused: not admitted"
OPERATOR_PHASES = ("paused by an operator", "drained by an operator")
FOR_TRAINER, DROPPING = "waiting for trainer", "rollout, most groups dropped"
FOR_BATCH, PUBLISHING = "waiting for batch", "publishing weights"
EVALUATING = "evaluating"
MAX_LINES = 5  # evidence of a finding
LONG_S = 60.0  # duration of a rollout, or of a phase of the trainer
_INSTANCE = re.compile(r"-[0-9a-f]{6}$")  # suffix of an environment's name, new at each start


@dataclass(frozen=True)
class Finding:
    """Cause of a lack of progress."""

    rule: int
    key: str
    severity: Severity
    cause: str
    evidence: tuple[str, ...]
    remedy: str
    at: float  # s since the epoch


@dataclass(frozen=True)
class CounterValue:
    """Value of a counter of the API; ``name`` as in /metrics, without the prefix ``atropos_``."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class RunSample:
    """Status and counters of a run at a moment; ``status`` is None without an answer."""

    at: float  # s since the epoch, clock of the API
    status: Mapping[str, Any] | None = None  # GET /status
    problem: str = ""  # reason why there is no status
    answer_s: float = 0.0  # duration of the status
    counters: tuple[CounterValue, ...] = ()
    elsewhere: tuple[str, ...] = ()  # further addresses at which an API has a started run


# --- processes ---------------------------------------------------------------------------


def detail_of(process: Process | None, name: str) -> float:
    """A detail of a heartbeat; 0 if it is absent or no number."""
    value = process["details"].get(name) if process else None
    return float(value) if isinstance(value, (int, float)) else 0.0


def label_of(process: Process) -> str:
    """The name of a process without the part that differs at each start."""
    return _INSTANCE.sub("", str(process["name"]))


def shown_name(process: Process) -> str:
    """The name that views show: of an environment the name that it got from the API at joining."""
    if process["role"] != "env":
        return str(process["name"])
    return str(process["details"].get("env") or label_of(process))


def silence_s(process: Process) -> float:
    """Seconds without a heartbeat; of a server, without an answer to its callers."""
    server = process["role"] == "inference"
    return detail_of(process, "silent_s") if server else float(process["age_s"])


def silent_ones(processes: Iterable[Process]) -> list[Process]:
    """Processes that give no sign of life, the longest silence first, for all reports.

    A process that ended or was replaced is not silent. A run has a single trainer.
    """
    latest: dict[object, Process] = {}
    for process in sorted(processes, key=lambda process: -float(process["age_s"])):
        latest[process["role"], process["role"] != "trainer" and label_of(process)] = process
    running = [process for process in latest.values() if "ended" not in process["details"]]
    alive = {process["role"] for process in running if silence_s(process) <= SILENT_S}
    bounds = (
        (process, FORGOTTEN_S if process["role"] in alive else float("inf"))
        for process in running
    )
    silent = [process for process, most_s in bounds if SILENT_S < silence_s(process) < most_s]
    return sorted(silent, key=silence_s, reverse=True)


def last_words(process: Process) -> str:
    """A silent process: since when, and the phase of its last heartbeat."""
    since = f"silent since {silence_s(process):.0f} s, last phase {process['phase']!r}"
    return f"{process['role']} {shown_name(process)}: {since}"


def activity_of(process: Process) -> str:
    """A process with its phase, its wait and the age of its heartbeat."""
    waits = f", waits for {process['waiting_on']}" if process.get("waiting_on") else ""
    return f"{shown_name(process)}: {process['phase']}{waits} ({process['age_s']:.0f} s ago)"


def evaluation_text(trainer: Process) -> str:
    """The evaluation that the trainer reports: what it evaluates, since when, its bound; or empty."""
    details = trainer["details"]
    if "evaluated_version" not in details:
        return ""
    spent_s = detail_of(trainer, "evaluation_s") + float(trainer["age_s"])
    return (
        f"version {details['evaluated_version']} of step {details.get('evaluated_step')}"
        f" ({details.get('evaluation_where')}), {spent_s:.0f} s of at most"
        f" {detail_of(trainer, 'evaluation_bound_s'):.0f} s"
    )


@dataclass(frozen=True)
class Evidence:
    """Two samples of a run, the earlier first; all that a rule reads.

    Without an earlier sample both are the same, and nothing counts as standing still.
    """

    url: str
    before: RunSample
    now: RunSample

    @property
    def seconds(self) -> float:
        """Time between the samples."""
        return max(self.now.at - self.before.at, 1e-3)

    @property
    def status(self) -> Mapping[str, Any]:
        return self.now.status or {}

    @property
    def reason(self) -> str:
        """Why no batch can be formed, with the silent processes; empty: a batch can be formed."""
        return str(self.status.get("blocked_reason") or "")

    @property
    def started(self) -> bool:
        return self.status.get("state") == "STARTED"

    def count(self, name: str) -> float:
        """A number of /status."""
        return float(self.status.get(name) or 0)

    def change(self, name: str) -> float:
        """Growth of a number of /status between the samples; it may be negative."""
        return self.count(name) - float((self.before.status or self.status).get(name) or 0)

    def tokens(self, name: str, sample: RunSample | None = None) -> float:
        """A figure of the balance of tokens; 0 while it is unknown."""
        balance = ((sample or self.now).status or {}).get("tokens") or {}
        return float(balance.get(name) or 0)

    def age(self, kind: str) -> float:
        """Seconds since the last event of this kind, at most the uptime of the API."""
        ages = self.status.get("ages_s") or {}
        return float(ages.get(kind, ages.get("uptime", 0.0)))

    def total(self, name: str, sample: RunSample | None = None, **labels: str) -> float:
        """The sum of a metric over all values of the labels that are not given."""
        return sum(
            counter.value
            for counter in (sample or self.now).counters
            if counter.name == name and labels.items() <= counter.labels.items()
        )

    def grown(self, name: str, **labels: str) -> float:
        """Growth of a counter between the samples; 0 after a restart of the API."""
        before = self.total(name, self.before, **labels)
        return max(0.0, self.total(name, self.now, **labels) - before)

    @property
    def still(self) -> bool:
        """Whether no group arrived, and no batch was delivered or acked between the samples."""
        if self.before is self.now:
            return False  # a single sample shows no lack of progress
        counters = ("groups_in_total", "batches_delivered_total", "batches_acked_total")
        # values that change at any replica
        held = ("batches_acked", "current_step", "queued_sequences")
        return not any(map(self.grown, counters)) and not any(map(self.change, held))

    def idle(self, kind: str, seconds: float = SILENT_S) -> bool:
        """Whether nothing moved between the samples, and no event of ``kind`` for ``seconds``."""
        return self.still and self.age(kind) > seconds

    @cached_property
    def processes(self) -> Sequence[Process]:
        return list(self.status.get("participants") or ())

    def fresh(self, role: str) -> list[Process]:
        """Processes of a role that give signs of life, the latest first; ended processes left out."""
        return self._alive.get(role, [])

    def silent(self, role: str) -> list[Process]:
        """Processes of a role that give no sign of life, the longest silence first."""
        return self._silent.get(role, [])

    @cached_property
    def _alive(self) -> dict[str, list[Process]]:
        alive: dict[str, list[Process]] = {}
        for process in sorted(self.processes, key=lambda process: float(process["age_s"])):
            if "ended" not in process["details"] and silence_s(process) <= SILENT_S:
                alive.setdefault(str(process["role"]), []).append(process)
        return alive

    @cached_property
    def _silent(self) -> dict[str, list[Process]]:
        silent: dict[str, list[Process]] = {}
        for process in silent_ones(self.processes):
            silent.setdefault(str(process["role"]), []).append(process)
        return silent

    @property
    def trainer(self) -> Process | None:
        """The trainer with the latest heartbeat, if that is recent."""
        return next(iter(self.fresh("trainer")), None)

    @property
    def usual_step_s(self) -> float:
        """Median seconds between two acks of this run; 0 while unknown."""
        return self.count("usual_step_s")

    @property
    def long_s(self) -> float:
        """Duration beyond which a phase is long here: a minute, or two usual steps."""
        return max(LONG_S, 2 * self.usual_step_s)

    @property
    def phase(self) -> str:
        """Phase of the trainer; empty without a recent heartbeat."""
        return str(self.trainer["phase"]) if self.trainer else ""

    def envs_all(self, phase: str) -> bool:
        """Whether there are environments with a recent heartbeat, all in this phase."""
        return {process["phase"] for process in self.fresh("env")} == {phase}

    @property
    def running(self) -> float:
        """Rollouts of the environments with a recent heartbeat."""
        return sum(detail_of(process, "rollouts_running") for process in self.fresh("env"))

    @property
    def oldest_rollout_s(self) -> float:
        return max(
            (detail_of(process, "oldest_rollout_s") for process in self.fresh("env")),
            default=0.0,
        )


# --- rules -------------------------------------------------------------------------------


class RuleMatch(NamedTuple):
    """Evidence with words that differ from the rule; empty: no finding."""

    evidence: Sequence[str]
    cause: str = ""
    remedy: str = ""
    severity: Severity | None = None


Lines = RuleMatch | Sequence[str]
LookFor = Callable[[Evidence], Lines]


@dataclass(frozen=True)
class Rule:
    """``number`` is that of the table in the documentation."""

    number: int
    key: str
    severity: Severity
    cause: str
    remedy: str
    look_for: LookFor

    def __call__(self, e: Evidence) -> Finding | None:
        lines = self.look_for(e)
        match = lines if isinstance(lines, RuleMatch) else RuleMatch(lines)
        shown = [line for line in match.evidence if line]
        if not shown:
            return None
        if len(shown) > MAX_LINES:
            shown[MAX_LINES:] = [f"and {len(shown) - MAX_LINES} more"]
        return Finding(
            rule=self.number,
            key=self.key,
            severity=match.severity or self.severity,
            cause=match.cause or self.cause,
            evidence=tuple(shown),
            remedy=match.remedy or self.remedy,
            at=e.now.at,
        )


def rule(number: int, severity: Severity, cause: str) -> Callable[[tuple[str, LookFor]], Rule]:
    """Make a rule of a function with a remedy; its key is the name of the function."""

    def make(remedied: tuple[str, LookFor]) -> Rule:
        remedy, look_for = remedied
        key = look_for.__name__.replace("_", "-")
        return Rule(number, key, severity, cause, remedy, look_for)

    return make


def fix(remedy: str) -> Callable[[LookFor], tuple[str, LookFor]]:
    """The remedy of a rule, between :func:`rule` and its function."""
    return lambda look_for: (remedy, look_for)
