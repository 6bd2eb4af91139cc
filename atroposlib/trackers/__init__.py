"""Trackers: services that record metrics, in addition to metrics.jsonl.

    MetricsLog --named (tracker names)--> Guarded --> wandb | tensorboard | swanlab | trackio

The x axis is the trainer's step. A tracker is one module here and one line of ``TRACKERS``.
A failing tracker does not end a run: its errors are counted, the first is printed, and after
GIVE_UP_AFTER failures in a row it is no longer called.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from atroposlib.errors import ConfigError, RolloutError, boundary

if TYPE_CHECKING:
    from example_trainer.settings.config import TrainingConfig

__all__ = ["TRACKERS", "Guarded", "OwnSteps", "Run", "Tracker", "open_tracker", "require"]

# Name (of the tracker, of its package, and of the module in this folder that has
# ``open_tracker(run) -> Tracker``) -> the extra of this package that installs it.
TRACKERS = {
    "wandb": "wandb",
    "tensorboard": "trackers",
    "swanlab": "trackers",
    "trackio": "trackers",
}
GIVE_UP_AFTER = 10


@dataclass(frozen=True)
class Run:
    """The run that a tracker records."""

    cfg: TrainingConfig
    run_id: str | None = None  # the rollout API's; the same after a restart
    step: int = 0  # steps that are done; more than 0 after a restart

    @property
    def name(self) -> str | None:
        """Name of the run: ``run_name``, else the first 8 characters of its id."""
        return self.cfg.run_name or (self.run_id[:8] if self.run_id else None)

    @property
    def project(self) -> str:
        """The project, by default ``atropos``: three of the four trackers require a name."""
        return self.cfg.wandb_project or "atropos"

    @property
    def key(self) -> str | None:
        """The id in a form that every tracker accepts: [A-Za-z0-9_-], <= 64 characters."""
        return re.sub(r"[^A-Za-z0-9_-]", "-", self.run_id)[:64] if self.run_id else None

    def settings(self) -> dict[str, Any]:
        """The settings of the run, without secrets."""
        return self.cfg.model_dump(mode="json", exclude={"inference_token"})


class Tracker(Protocol):
    """A service that records metrics. Both methods may raise any exception."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record the metrics of one step. A step that is trained again is recorded again."""

    def close(self) -> None:
        """Send pending metrics and end the tracker's run."""


class OwnSteps:
    """A tracker whose package accepts an explicit step, repeated ones included."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def require(name: str) -> None:
    """Check that a tracker is installed, without importing it.

    Raises:
        ConfigError: the name is unknown, or its package is not installed.
    """
    if name not in TRACKERS:
        known = ", ".join(sorted(TRACKERS))
        raise ConfigError(f"tracker {name!r} is unknown; there are: {known}")
    if importlib.util.find_spec(name) is None:
        extra = TRACKERS[name]
        raise ConfigError(f"tracker {name} needs: pip install 'atroposlib[{extra}]'")


def open_tracker(name: str, run: Run) -> Tracker:
    """Start the tracker of that name.

    Raises:
        ConfigError: the tracker is unknown, not installed, or requires an account.
        Exception: any other error of its package.
    """
    require(name)
    module = importlib.import_module(f"atroposlib.trackers.{name}")
    tracker: Tracker = module.open_tracker(run)
    return tracker


class Guarded:
    """A tracker whose failures are counted and printed, not raised.

    Raises:
        ConfigError: at construction, if the tracker cannot start as configured.
    """

    def __init__(self, name: str, open_it: Callable[[], Tracker]) -> None:
        self.name = name
        self.failures = 0
        self._in_a_row = 0
        self._tracker: Tracker | None = None
        try:
            with boundary(f"tracker {name}", "its start", "starting"):
                self._tracker = open_it()
        except RolloutError as error:
            self._failed(error, "metrics are recorded without it")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record one step, or count a failure."""
        if self._tracker is None:
            return
        try:
            with boundary(f"tracker {self.name}", f"step {step}", "logging"):
                self._tracker.log(metrics, step)
        except RolloutError as error:
            self._failed(error, "the run continues; later failures are only counted")
            if self._in_a_row == GIVE_UP_AFTER:
                print(f"tracker {self.name}: off after {GIVE_UP_AFTER} failures in a row")
                self._tracker = None
        else:
            self._in_a_row = 0

    def close(self) -> None:
        """Close the tracker; an error is counted."""
        if self._tracker is None:
            return
        try:
            with boundary(f"tracker {self.name}", "its end", "closing"):
                self._tracker.close()
        except RolloutError as error:
            self._failed(error, "its last metrics may be missing")

    def _failed(self, error: RolloutError, consequence: str) -> None:
        self.failures += 1
        self._in_a_row += 1
        if self.failures == 1:
            print(f"{error}; {consequence}", flush=True)
