"""The services: wandb, tensorboard, swanlab, trackio; each package is imported at its start.

``WANDB_MODE=offline`` and ``SWANLAB_MODE=offline`` (or ``local``) need no account and no
network; trackio is local by default and shown by ``trackio show``; tensorboard's event files are
in ``<directory>/tensorboard/<run>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from atroposlib.errors import ConfigError

DEFAULT_PROJECT = "atropos"
AXIS = "step"


@dataclass(frozen=True)
class Run:
    """The run that a tracker records."""

    name: str | None = None
    project: str | None = None  # None: ``atropos``; for wandb its own default
    group: str | None = None
    run_id: str | None = None  # a run of the same id is resumed; None: always a new run
    step: int = 0  # steps that are done; more than 0 after a restart
    directory: Path = Path("logs")  # directory of trackers that write files
    settings: Mapping[str, Any] = field(default_factory=dict)  # JSON, without secrets

    @property
    def shown_name(self) -> str | None:
        """The name, else the first 8 characters of the id."""
        return self.name or (self.run_id[:8] if self.run_id else None)

    @property
    def key(self) -> str | None:
        """The id in a form that every tracker accepts: [A-Za-z0-9_-], <= 64 characters."""
        return re.sub(r"[^A-Za-z0-9_-]", "-", self.run_id)[:64] if self.run_id else None


class Tracker(Protocol):
    """A service that records metrics. Both methods may raise any exception."""

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Record the metrics of a step. A step that is trained again is recorded again.

        Metrics are finite numbers; wandb takes tables, images and text as well.
        """

    def close(self) -> None:
        """Send pending metrics and end the tracker's run."""


class OwnSteps:
    """A tracker whose package accepts an explicit step, even a repeated step."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class Wandb(OwnSteps):
    """A wandb run with the metric ``step`` as x axis.

    After a restart steps are trained again. wandb's own step counter never decreases, so it
    would drop the repeated steps.
    """

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        run.define_metric(AXIS, hidden=True)
        run.define_metric("*", step_metric=AXIS)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self._run.log({**metrics, AXIS: step})


class Tensorboard:
    """Event file with a scalar per metric and step."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def resumable(run: Run) -> dict[str, Any]:
    """Arguments of wandb and SwanLab: a run of the same id is resumed."""
    return {
        "project": run.project,
        "group": run.group,
        "name": run.shown_name,
        "id": run.key,
        "resume": "allow" if run.key else None,
        "config": dict(run.settings),
    }


def open_wandb(run: Run) -> Tracker:
    """Raises ConfigError: wandb requires an account."""
    import wandb
    from wandb.errors import UsageError

    try:
        started = wandb.init(**resumable(run))
    except UsageError as error:  # no API key, and no terminal to enter a key
        raise ConfigError(
            f"wandb: {str(error).rstrip('.')}; run `wandb login`, set WANDB_MODE=offline, or"
            " set use_wandb to false"
        ) from error
    # A run that is never resumed repeats no step: wandb's own counter is the step.
    return Wandb(started) if run.key else OwnSteps(started)


def open_swanlab(run: Run) -> Tracker:
    import swanlab

    options = {**resumable(run), "project": run.project or DEFAULT_PROJECT}
    return OwnSteps(swanlab.init(**options))


def open_trackio(run: Run) -> Tracker:
    """A run of the same name is resumed; the name contains the run's id."""
    import trackio

    started = trackio.init(
        project=run.project or DEFAULT_PROJECT,
        name="-".join(part for part in (run.name, run.key) if part) or None,
        group=run.group,
        resume="allow" if run.key else "never",
        config=dict(run.settings),
        embed=False,
    )
    return OwnSteps(started)


def open_tensorboard(run: Run) -> Tracker:
    """Start an event file; after a restart, repeated steps replace the earlier records."""
    from torch.utils.tensorboard import SummaryWriter

    directory = run.directory / "tensorboard" / (run.shown_name or "run")
    # Also purges earlier steps if the step is 0: another run then uses the directory.
    writer: Any = SummaryWriter(str(directory), purge_step=run.step + 1)
    settings = json.dumps(dict(run.settings), indent=2)
    writer.add_text("settings", "    " + settings.replace("\n", "\n    "), run.step)
    return Tensorboard(writer)
