"""State of the loop: the stop signal, and schedules by epochs, steps and seconds."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Protocol

from atroposlib.errors import ConfigError


class Stopped(Exception):
    """A signal stopped the trainer; the message is its name."""


class StoppedBetweenSteps(Stopped):
    """The models are as after the last step: no further step has begun."""


class StopSignal:
    """Set by a signal handler, checked where stopping is safe: never between publish and ack."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def request(self, number: int) -> None:
        self.reason = signal.Signals(number).name

    def check(self) -> None:
        if self.reason is not None:
            raise Stopped(self.reason)


class Resumable(Protocol):
    """Numbers that a checkpoint holds, and that go on with it."""

    def state(self) -> dict[str, float]:
        """JSON values."""

    def restore(self, state: dict[str, float]) -> None:
        """Continue from what :meth:`state` returned."""


@dataclass
class Frequency:
    """Schedule: due after so many epochs, steps or seconds, by the first counter to fire.

    A counter that fires is reset; the rest count on.

    Example: ``Frequency(epochs=1, steps=5)`` with 8 steps per epoch fires at steps 4, 7, 9,
    14, 15 (steps counted from 0). Without a bound it never fires.

    Args:
        seconds: of wall-clock time, so that they include the time between two processes.
        since_s: wall-clock time at which the seconds begin.
    """

    epochs: int | None = None
    steps: int | None = None
    seconds: float | None = None
    since_s: float = 0.0
    _epochs: int = field(default=0, init=False)
    _steps: int = field(default=0, init=False)

    def due(self, epoch_ended: bool, now_s: float) -> bool:
        """Count a step. Call it once per step."""
        self._epochs += epoch_ended
        self._steps += 1
        self.since_s = min(self.since_s, now_s)  # the clock was set back: by hours, perhaps
        by_epochs = self.epochs is not None and self._epochs >= self.epochs
        by_steps = self.steps is not None and self._steps >= self.steps
        by_seconds = self.seconds is not None and now_s - self.since_s >= self.seconds
        if by_epochs:
            self._epochs = 0
        if by_steps:
            self._steps = 0
        if by_seconds:
            self.since_s = now_s
        return by_epochs or by_steps or by_seconds

    def state(self) -> dict[str, float]:
        """The counters, as JSON values."""
        return {"epochs": self._epochs, "steps": self._steps, "since_s": self.since_s}

    def restore(self, state: dict[str, float]) -> None:
        """Continue from what :meth:`state` returned; raises ConfigError for anything else."""
        try:
            epochs, steps, since_s = state["epochs"], state["steps"], state["since_s"]
        except (KeyError, TypeError) as error:
            raise ConfigError(f"these are no counters of a frequency: {state!r}") from error
        self._epochs, self._steps, self.since_s = int(epochs), int(steps), float(since_s)
