"""Tracker for Weights & Biases. ``WANDB_MODE=offline`` needs no account and no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.trackers import OwnSteps, Run, Tracker

AXIS = "step"


class Wandb:
    """A wandb run with the metric ``step`` as x axis.

    After a restart steps are trained again. wandb's own step counter never decreases, so it
    would drop them.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        run.define_metric(AXIS, hidden=True)
        run.define_metric("*", step_metric=AXIS)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self._run.log({**metrics, AXIS: step})

    def close(self) -> None:
        self._run.finish()


def open_tracker(run: Run) -> Tracker:
    """Start a run, or resume the one of the same id.

    Raises ConfigError: wandb requires an account.
    """
    import wandb
    from wandb.errors import UsageError

    try:
        started = wandb.init(
            project=run.project,
            group=run.group,
            name=run.shown_name,
            id=run.key,
            resume="allow" if run.key else None,
            config=dict(run.settings),
        )
    except UsageError as error:  # no API key and no terminal to enter one
        raise ConfigError(
            f"wandb: {str(error).rstrip('.')}; run `wandb login`, set WANDB_MODE=offline, or"
            " set use_wandb to false"
        ) from error
    # A run that is never resumed repeats no step: wandb's own counter is the step.
    return Wandb(started) if run.key else OwnSteps(started)
