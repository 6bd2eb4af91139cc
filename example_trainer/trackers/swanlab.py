"""SwanLab. ``SWANLAB_MODE=offline`` (or ``local``) needs no account and no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from example_trainer.trackers import Run


class Swanlab:
    """One run; its own step counter accepts a step again."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def open_tracker(run: Run) -> Swanlab:
    """Start a run, or go on with the one of the same id."""
    import swanlab

    started = swanlab.init(
        project=run.project,
        group=run.cfg.wandb_group,
        name=run.name,
        id=run.key,
        resume="allow" if run.key else None,
        config=run.settings(),
    )
    return Swanlab(started)
