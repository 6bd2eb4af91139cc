"""Tracker for Weights & Biases. ``WANDB_MODE=offline`` needs no account and no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError

if TYPE_CHECKING:
    from atroposlib.trackers import Run

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

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log({**metrics, AXIS: step})

    def close(self) -> None:
        self._run.finish()


def open_tracker(run: Run) -> Wandb:
    """Start a run, or resume the one of the same id.

    Raises:
        ConfigError: wandb requires an account.
    """
    import wandb
    from wandb.errors import UsageError

    try:
        started = wandb.init(
            project=run.project,
            group=run.cfg.wandb_group,
            name=run.name,
            id=run.key,
            resume="allow",
            config=run.settings(),
        )
    except UsageError as error:  # no API key and no terminal to enter one
        raise ConfigError(
            f"wandb: {str(error).rstrip('.')}; run `wandb login`, or set WANDB_MODE=offline"
        ) from error
    return Wandb(started)
