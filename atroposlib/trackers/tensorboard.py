"""Tracker for TensorBoard: event files in ``<directory>/tensorboard/<run>``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atroposlib.trackers import Run


class Tensorboard:
    """One scalar per metric and step."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def open_tracker(run: Run) -> Tensorboard:
    """Start an event file; after a restart, repeated steps replace the earlier ones."""
    from torch.utils.tensorboard import SummaryWriter

    directory = run.directory / "tensorboard" / (run.shown_name or "run")
    # Also purges earlier steps if the step is 0: another run then uses the directory.
    writer: Any = SummaryWriter(str(directory), purge_step=run.step + 1)
    settings = json.dumps(dict(run.settings), indent=2)
    writer.add_text("settings", "    " + settings.replace("\n", "\n    "), run.step)
    return Tensorboard(writer)
