"""Evidence: two looks at a run and what they show, and the form of a rule over it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

Severity = Literal["stuck", "waiting", "warning"]
Process = Mapping[str, Any]  # a participant of /status
# Processes send heartbeats every 2 s; at load 13 on two cores, up to 6 s apart.
SILENT_S = 15.0
FORGOTTEN_S = 600.0  # then a silent process is history, if a process of its role still runs
PAUSED, NOT_ADMITTED = "paused: queue full", "paused: not admitted"
FOR_TRAINER, DROPPING = "waiting for trainer", "rollout, most groups dropped"
FOR_BATCH, PUBLISHING = "waiting for batch", "publishing weights"
MOST_LINES = 5  # evidence of a finding
_SAMPLE = re.compile(r"^atropos_(\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
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
class Sample:
    """Value of /metrics; ``name`` without the prefix ``atropos_``."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Look:
    """Reports of the API and the inference servers at a moment. None: no answer."""

    at: float  # s since the epoch, clock of the API where its answer has a time
    status: Mapping[str, Any] | None = None  # GET /status
    problem: str = ""  # problem of the API: no answer, or the reply of /health
    answer_s: float = 0.0  # duration of GET /status
    metrics: tuple[Sample, ...] = ()
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # /server_info
    elsewhere: tuple[str, ...] = ()  # further addresses at which an API has a started run


def samples(page: str) -> tuple[Sample, ...]:
    """Parse the metrics of the rollout API in the text format of Prometheus."""
    return tuple(
        Sample(name, dict(_LABEL.findall(labels)), float(value))
        for name, labels, value in _SAMPLE.findall(page)
    )


# --- processes ---------------------------------------------------------------------------


def number(process: Process | None, name: str) -> float:
    """A detail of a heartbeat; 0 if it is absent or no number."""
    value = process["details"].get(name) if process else None
    return float(value) if isinstance(value, (int, float)) else 0.0


def label(process: Process) -> str:
    """The name of a process without the part that differs at each start."""
    return _INSTANCE.sub("", str(process["name"]))


def silence_s(process: Process) -> float:
    """Seconds without a heartbeat; of a server, without an answer to its callers."""
    server = process["role"] == "inference"
    return number(process, "silent_s") if server else float(process["age_s"])


def silent_ones(processes: Iterable[Process]) -> list[Process]:
    """Processes that give no sign of life, the longest silence first, for all reports.

    A process that ended or was replaced is not silent. A run has a single trainer.
    """
    latest: dict[object, Process] = {}
    for process in sorted(processes, key=lambda process: -float(process["age_s"])):
        latest[process["role"], process["role"] != "trainer" and label(process)] = process
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
    return f"{process['role']} {process['name']}: {since}"


def doing(process: Process) -> str:
    """A process with its phase, its wait and the age of its heartbeat."""
    waits = f", waits for {process['waiting_on']}" if process.get("waiting_on") else ""
    return f"{process['name']}: {process['phase']}{waits} ({process['age_s']:.0f} s ago)"


def info(look: Look, server: Process) -> Mapping[str, Any]:
    """Own report of a local inference server; empty for any other kind."""
    return look.servers.get(str(server["name"]).rstrip("/").removesuffix("/v1"), {})


@dataclass(frozen=True)
class Evidence:
    """Two looks, the earlier first; all that a rule reads."""

    url: str
    before: Look
    now: Look

    @property
    def looks(self) -> tuple[Look, Look]:
        return self.before, self.now

    @property
    def seconds(self) -> float:
        """Time between the looks."""
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
        """Growth of a number of /status between the looks; it may be negative."""
        return self.count(name) - float((self.before.status or self.status).get(name) or 0)

    def age(self, kind: str) -> float:
        """Seconds since the last event of this kind, at most the uptime of the API."""
        ages = self.status.get("ages_s") or {}
        return float(ages.get(kind, ages.get("uptime", 0.0)))

    def total(self, name: str, look: Look | None = None, **labels: str) -> float:
        """The sum of a metric over all values of the labels that are not given."""
        return sum(
            metric.value
            for metric in (look or self.now).metrics
            if metric.name == name and labels.items() <= metric.labels.items()
        )

    def grown(self, name: str, **labels: str) -> float:
        """Growth of a counter between the looks; 0 after a restart of the API."""
        before = self.total(name, self.before, **labels)
        return max(0.0, self.total(name, self.now, **labels) - before)

    @property
    def still(self) -> bool:
        """Whether no group arrived, and no batch was delivered or acked between the looks."""
        counters = ("groups_in_total", "batches_delivered_total", "batches_acked_total")
        # values that change at any replica
        held = ("batches_acked", "current_step", "queued_sequences")
        return not any(map(self.grown, counters)) and not any(map(self.change, held))

    def idle(self, kind: str, seconds: float = SILENT_S) -> bool:
        """Whether nothing moved between the looks, and no event of ``kind`` for ``seconds``."""
        return self.still and self.age(kind) > seconds

    @cached_property
    def processes(self) -> Sequence[Process]:
        return list(self.status.get("participants") or ())

    def fresh(self, role: str) -> list[Process]:
        """Processes of a role that give signs of life, the latest first; ended processes left out."""
        alike = [process for process in self.processes if process["role"] == role]
        here = (process for process in alike if "ended" not in process["details"])
        alive = [process for process in here if silence_s(process) <= SILENT_S]
        return sorted(alive, key=lambda process: float(process["age_s"]))

    def silent(self, role: str) -> list[Process]:
        """Processes of a role that give no sign of life, the longest silence first."""
        return [process for process in silent_ones(self.processes) if process["role"] == role]

    @property
    def trainer(self) -> Process | None:
        """The trainer with the latest heartbeat, if that is recent."""
        return next(iter(self.fresh("trainer")), None)

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
        return sum(number(process, "rollouts_running") for process in self.fresh("env"))

    @property
    def oldest_rollout_s(self) -> float:
        """Age of the oldest rollout."""
        return max(
            (number(process, "oldest_rollout_s") for process in self.fresh("env")), default=0.0
        )


# --- rules -------------------------------------------------------------------------------


class Found(NamedTuple):
    """Evidence with words that differ from the rule; empty: no finding."""

    evidence: Sequence[str]
    cause: str = ""
    remedy: str = ""
    severity: Severity | None = None


Lines = Found | Sequence[str]
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
        match = lines if isinstance(lines, Found) else Found(lines)
        shown = [line for line in match.evidence if line]
        if not shown:
            return None
        if len(shown) > MOST_LINES:
            shown[MOST_LINES:] = [f"and {len(shown) - MOST_LINES} more"]
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
