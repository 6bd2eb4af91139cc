"""Trackio: local by default, read with ``trackio show``; no account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from example_trainer.trackers import Run


class Trackio:
    """One run; runs are told apart by name, so the name holds the run's id."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def open_tracker(run: Run) -> Trackio:
    """Start a run, or go on with the one of the same name."""
    import trackio

    started = trackio.init(
        project=run.project,
        name="-".join(part for part in (run.cfg.run_name, run.key) if part) or None,
        group=run.cfg.wandb_group,
        resume="allow" if run.key else "never",
        config=run.settings(),
        embed=False,
    )
    return Trackio(started)
