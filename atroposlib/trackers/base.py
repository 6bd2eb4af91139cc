"""A tracker, and what it is told about the run that it records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from example_trainer.settings.config import TrainingConfig


@dataclass(frozen=True)
class Run:
    """What a tracker is told about the run it belongs to."""

    cfg: TrainingConfig
    run_id: str | None = None  # the rollout API's; the same after a restart
    step: int = 0  # steps that are done; more than 0 after a restart

    @property
    def name(self) -> str | None:
        """Name of the run: as configured, else the start of its id."""
        return self.cfg.run_name or (self.run_id[:8] if self.run_id else None)

    @property
    def project(self) -> str:
        """The project, or a common one: three of the four trackers insist on a name."""
        return self.cfg.wandb_project or "atropos"

    @property
    def key(self) -> str | None:
        """The id in a form that every tracker takes."""
        return re.sub(r"[^A-Za-z0-9_-]", "-", self.run_id)[:64] if self.run_id else None

    def settings(self) -> dict[str, Any]:
        """The settings of the run, without what nobody else may read."""
        return self.cfg.model_dump(mode="json", exclude={"inference_token"})


class Tracker(Protocol):
    """One place that metrics go to. Both methods may raise anything."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record the metrics of one step. A step that is trained again comes again."""

    def close(self) -> None:
        """Send what is left and end the run there."""


class OwnSteps:
    """A run of a package that counts steps itself and takes the same one again."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()
