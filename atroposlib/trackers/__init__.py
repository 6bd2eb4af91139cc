"""Trackers: services that record metrics, in addition to metrics.jsonl.

    trainer, environment --metrics--> Guarded --> wandb | tensorboard | swanlab | trackio

The x axis is the trainer's step. A tracker is a function of :mod:`.services`, a line of
``TRACKERS`` and a name of ``TrackerName``, or a plug-in: a function of a ``Run`` that returns a
``Tracker``. A failing tracker does not end a run: its errors
are counted, the first is printed, and after GIVE_UP_AFTER failures in a row it is no longer
called.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from atroposlib.errors import ConfigError, RolloutError, boundary
from atroposlib.trackers import services
from atroposlib.trackers.services import Run, Tracker
from atroposlib.utils.command import plugins

TrackerName = Literal["wandb", "tensorboard", "swanlab", "trackio"]
# Name -> its packages, the extras that install the packages, and the start function.
TRACKERS = {
    "wandb": (["wandb"], "wandb", services.open_wandb),
    "tensorboard": (["tensorboard", "torch"], "trackers,train", services.open_tensorboard),
    "swanlab": (["swanlab"], "trackers", services.open_swanlab),
    "trackio": (["trackio"], "trackers", services.open_trackio),
}
logger = logging.getLogger(__name__)
GIVE_UP_AFTER = 10


def tracker_names(chosen: Iterable[str], use_wandb: bool) -> list[str]:
    """Each chosen tracker once; ``use_wandb`` is another way to choose wandb."""
    names = list(dict.fromkeys(chosen))
    return names if not use_wandb or "wandb" in names else ["wandb", *names]


def known_trackers(names: Sequence[str]) -> list[str]:
    """``names``, for validators of settings. Raises ConfigError: a name is unknown."""
    return [plugins.valid_name(plugins.TRACKER, name, TRACKERS) for name in names]


def finite_number(value: Any) -> float | None:
    """``value`` as a number; None for anything else, a truth value and NaN included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # 1 with 400 zeros
        return None


def finite_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The entries that every tracker takes."""
    numbers = {name: finite_number(value) for name, value in metrics.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def is_installed(name: str) -> bool:
    """Whether the packages of a tracker are there; they are not imported."""
    packages, _, _ = TRACKERS[name]
    return all(importlib.util.find_spec(package) is not None for package in packages)


def require_tracker(name: str) -> None:
    """Check that a tracker is installed, without importing it; a plug-in is imported.

    Raises ConfigError: the name is unknown, its package is not installed, or a plug-in is wrong.
    """
    if plugins.target_of(plugins.TRACKER, name, TRACKERS) is not None:
        plugins.load_plugin(plugins.TRACKER, name)
    elif not is_installed(name):
        _, extras, _ = TRACKERS[name]
        raise ConfigError(f"tracker {name} needs: pip install 'atropos-rl[{extras}]'")


def open_tracker(name: str, run: Run) -> Tracker:
    """Start the tracker of that name.

    Raises:
        ConfigError: the tracker is unknown, not installed, or requires an account.
        Exception: any further error of its package.
    """
    require_tracker(name)
    if name in TRACKERS:
        _, _, start = TRACKERS[name]
        return start(run)
    start = plugins.load_plugin(plugins.TRACKER, name)
    tracker: Tracker = start(run)
    if not all(callable(getattr(tracker, method, None)) for method in ("log", "close")):
        problem = f"{name} has to return an object with log(metrics, step) and close()"
        raise plugins.result_error(plugins.TRACKER, start, problem)
    return tracker


class Guarded:
    """A tracker whose failures are counted and printed, not raised.

    Raises ConfigError: at construction, if the tracker cannot start as configured.
    """

    def __init__(self, name: str, open_it: Callable[[], Tracker]) -> None:
        self.name = name
        self.failures = 0
        self._in_a_row = 0
        self._tracker: Tracker | None = None
        with self._count_failures("its start", "starting", "metrics are recorded without it"):
            self._tracker = open_it()

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Record a step, or count a failure."""
        if self._tracker is None:
            return
        consequence = "the run continues; later failures are only counted"
        with self._count_failures(f"step {step}", "logging", consequence):
            self._tracker.log(metrics, step)
        if self._in_a_row == GIVE_UP_AFTER:
            logger.warning(f"tracker {self.name}: off after {GIVE_UP_AFTER} failures in a row")
            self._tracker = None

    def close(self) -> None:
        """Close the tracker; an error is counted."""
        if self._tracker is not None:
            with self._count_failures("its end", "closing", "its last metrics may be missing"):
                self._tracker.close()

    @contextmanager
    def _count_failures(self, item: str, stage: str, consequence: str) -> Iterator[None]:
        try:
            with boundary(f"tracker {self.name}", item, stage):
                yield
            self._in_a_row = 0
        except RolloutError as error:
            self.failures += 1
            self._in_a_row += 1
            if self.failures == 1:
                logger.warning(f"{error}; {consequence}")
