"""Evidence: two looks at a run, and what they show about progress and silence. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Severity = Literal["stuck", "waiting", "warning"]
Process = Mapping[str, Any]  # a participant of /status
SILENT_S = 15.0  # processes send heartbeats every 2 s
FORGOTTEN_S = 600.0  # then a process that was not replaced is history
PAUSED, NOT_ADMITTED = "paused: queue full", "paused: not admitted"
FOR_TRAINER, DROPPING = "waiting for trainer", "rollout, most groups dropped"
FOR_BATCH = "waiting for batch"
_SAMPLE = re.compile(r"^atropos_(\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_INSTANCE = re.compile(r"-[0-9a-f]{6}$")  # of an environment's name, new at each start


@dataclass(frozen=True)
class Finding:
    """One cause of a lack of progress."""

    rule: int
    key: str
    severity: Severity
    cause: str
    evidence: tuple[str, ...]
    remedy: str
    at: float  # s since the epoch


@dataclass(frozen=True)
class Sample:
    """One value of /metrics; ``name`` without the prefix ``atropos_``."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Look:
    """What the API and the inference servers reported at one moment. None: no answer."""

    at: float  # s since the epoch, clock of the API where its answer has one
    status: Mapping[str, Any] | None = None  # GET /status
    problem: str = ""  # of the API: no answer, or that of /health
    answer_s: float = 0.0  # duration of GET /status
    metrics: tuple[Sample, ...] = ()
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # /server_info
    elsewhere: tuple[str, ...] = ()  # other addresses at which an API has a started run


def samples(page: str) -> tuple[Sample, ...]:
    """Parse the metrics of the rollout API in the text format of Prometheus."""
    return tuple(
        Sample(name, dict(_LABEL.findall(labels)), float(value))
        for name, labels, value in _SAMPLE.findall(page)
    )


def label(process: Process) -> str:
    """The name of a process without the part that differs at each start."""
    return _INSTANCE.sub("", str(process["name"]))


@dataclass(frozen=True)
class Evidence:
    """Two looks, the earlier one first; all that a rule reads."""

    url: str
    before: Look
    now: Look

    @property
    def seconds(self) -> float:
        """Time between the looks."""
        return max(self.now.at - self.before.at, 1e-3)

    @property
    def status(self) -> Mapping[str, Any]:
        return self.now.status or {}

    @property
    def reason(self) -> str:
        """Why no batch can be formed; empty: one can be. Without the list of silent processes."""
        return str(self.status.get("blocked_reason") or "")

    @property
    def started(self) -> bool:
        return self.status.get("state") == "STARTED"

    def count(self, name: str, default: float = 0) -> float:
        """A number of /status."""
        return float(self.status.get(name) or default)

    def age(self, kind: str) -> float:
        """Seconds since the last event of this kind, at most the uptime of the API."""
        ages = self.status.get("ages_s") or {}
        return float(ages.get(kind, ages.get("uptime", 0.0)))

    # --- counters of the two looks ---------------------------------------------------

    def total(self, name: str, look: Look | None = None, **labels: str) -> float:
        """The sum of a metric over all label values but those given."""
        return sum(
            one.value
            for one in (look or self.now).metrics
            if one.name == name and labels.items() <= one.labels.items()
        )

    def grown(self, name: str, **labels: str) -> float:
        """Growth of a counter between the looks; 0 after a restart of the API."""
        return max(
            0.0, self.total(name, self.now, **labels) - self.total(name, self.before, **labels)
        )

    @property
    def still(self) -> bool:
        """Whether no group arrived, and no batch was delivered or acked between the looks."""
        names = ("groups_in_total", "batches_delivered_total", "batches_acked_total")
        return not any(self.grown(name) for name in names)

    def idle(self, kind: str, seconds: float = SILENT_S) -> bool:
        """Whether nothing moved between the looks, and no event of ``kind`` for ``seconds``."""
        return self.still and self.age(kind) > seconds

    # --- processes -------------------------------------------------------------------

    @cached_property
    def processes(self) -> Sequence[Process]:
        return list(self.status.get("participants") or ())

    def fresh(self, role: str) -> list[Process]:
        """Processes of a role with a recent heartbeat, the latest first; ended ones left out."""
        here = [one for one in self._running(role) if one["age_s"] <= SILENT_S]
        return sorted(here, key=lambda one: float(one["age_s"]))

    def silent(self, role: str) -> list[Process]:
        """Processes without a recent heartbeat that neither ended nor were replaced."""

        def place(one: Process) -> str:  # that a successor takes; a run has one trainer
            return role if role == "trainer" else label(one)

        here = {place(one) for one in self.fresh(role)}
        late = [one for one in self._running(role) if one["age_s"] > SILENT_S]
        return [one for one in late if place(one) not in here]

    def _running(self, role: str) -> list[Process]:
        """Processes of a role that did not end."""
        alike = [one for one in self.processes if one["role"] == role]
        return [one for one in alike if "ended" not in one["details"]]

    @property
    def trainer(self) -> Process | None:
        """The trainer with the latest heartbeat, if that is recent."""
        return next(iter(self.fresh("trainer")), None)

    @property
    def phase(self) -> str:
        """Phase of the trainer; empty without a recent heartbeat."""
        return str(self.trainer["phase"]) if self.trainer else ""

    def servers(self, *, silent: bool) -> list[Process]:
        """Inference servers that their callers report as silent, or as answering."""
        here = [one for one in self.processes if one["role"] == "inference"]
        return [one for one in here if (number(one, "silent_s") > SILENT_S) is silent]

    def sum(self, name: str) -> float:
        """The sum of one detail over the environments with a recent heartbeat."""
        return sum(number(one, name) for one in self.fresh("env"))


def number(process: Process, name: str) -> float:
    """A detail of a heartbeat; 0 if it is absent or no number."""
    value = process["details"].get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0


def last_words(process: Process) -> str:
    """A silent process: since when, and the phase of its last heartbeat."""
    return (
        f"{process['role']} {process['name']}: silent since {process['age_s']:.0f} s, "
        f"last phase {process['phase']!r}"
    )


def doing(process: Process) -> str:
    """A process with its phase, its wait and the age of its heartbeat."""
    waits = f", waits for {process['waiting_on']}" if process.get("waiting_on") else ""
    return f"{process['name']}: {process['phase']}{waits} ({process['age_s']:.0f} s ago)"


def listed(texts: Iterable[str], most: int = 3) -> tuple[str, ...]:
    """The first texts, and how many more there are."""
    found = list(texts)
    more = (f"and {len(found) - most} more",) if len(found) > most else ()
    return (*found[:most], *more)
