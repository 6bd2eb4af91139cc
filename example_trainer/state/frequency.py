"""How often something happens: after so many epochs, steps or seconds, whichever comes first."""

from __future__ import annotations

from dataclasses import dataclass, field

from atroposlib.errors import ConfigError


@dataclass
class Frequency:
    """Three counters, OR-ed. One that fires begins anew; the others count on.

    Example: ``Frequency(epochs=1, steps=5)`` with 8 steps per epoch fires at steps 4, 7, 9,
    14, 15 (steps counted from 0). With no bound at all it never fires.

    Args:
        seconds: of wall-clock time, so that after a restart the time away has passed too.
        since_s: wall-clock time at which the seconds begin.
    """

    epochs: int | None = None
    steps: int | None = None
    seconds: float | None = None
    since_s: float = 0.0
    _epochs: int = field(default=0, init=False)
    _steps: int = field(default=0, init=False)

    def due(self, epoch_ended: bool, now_s: float) -> bool:
        """Count one step. Call it once per step."""
        self._epochs += epoch_ended
        self._steps += 1
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
        """The counters, as JSON holds them."""
        return {"epochs": self._epochs, "steps": self._steps, "since_s": self.since_s}

    def restore(self, state: dict[str, float]) -> None:
        """Go on from what :meth:`state` said.

        Raises:
            ConfigError: that was something else.
        """
        try:
            epochs, steps, since_s = state["epochs"], state["steps"], state["since_s"]
        except (KeyError, TypeError) as error:
            raise ConfigError(f"these are no counters of a frequency: {state!r}") from error
        self._epochs, self._steps, self.since_s = int(epochs), int(steps), float(since_s)
