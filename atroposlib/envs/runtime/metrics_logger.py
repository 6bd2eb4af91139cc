"""Where an environment's numbers go: sinks behind one call.

``jsonl`` (``metrics_path``) and the log always work; Weights & Biases is one more sink.
A sink gets ``(metrics, step)`` and may drop what it cannot show, such as a table in a file.
"""

from __future__ import annotations

import json
import logging
import math
import random
import string
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Protocol, TextIO

from atroposlib.envs.rollout.groups import plain
from atroposlib.errors import ConfigError

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """One place that metrics are written to."""

    def write(self, metrics: Mapping[str, Any], step: int) -> None: ...

    def close(self) -> None: ...


class Logbook:
    """Every sink of one run, and the values to be averaged at the next emission."""

    def __init__(self, sinks: list[Sink]) -> None:
        self.sinks = sinks
        self._values: dict[str, list[float]] = {}

    def log(self, name: str, value: float) -> None:
        """Remember ``value``; the next emission shows the mean of what came since the last."""
        self._values.setdefault(name, []).append(float(value))

    def averages(self) -> dict[str, float]:
        """The mean of each remembered name; forgets them."""
        values, self._values = self._values, {}
        return {name: sum(seen) / len(seen) for name, seen in values.items()}

    def emit(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write ``metrics`` to every sink."""
        for sink in self.sinks:
            sink.write(metrics, step)

    def close(self) -> None:
        """Flush and close every sink."""
        for sink in self.sinks:
            sink.close()


def scalars(metrics: Mapping[str, Any]) -> dict[str, float | int | str | bool | None]:
    """The entries that are one number or word; not-a-number becomes null, tables go."""
    shown: dict[str, float | int | str | bool | None] = {}
    for name, value in metrics.items():
        value = plain(value)
        if isinstance(value, float) and not math.isfinite(value):
            value = None
        if value is None or isinstance(value, (bool, int, float, str)):
            shown[name] = value
    return shown


class JsonlSink:
    """One JSON object per emission: time, env, step, then the metrics."""

    def __init__(self, path: Path, env: str) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._env = env

    def write(self, metrics: Mapping[str, Any], step: int) -> None:
        """Append a line and flush it: a crash must not lose what was measured."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8")
        line = {"time": time.time(), "env": self._env, "step": step, **scalars(metrics)}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class LogSink:
    """One line of the log per emission; timings are left to the other sinks."""

    def __init__(self, env: str) -> None:
        self._env = env

    def write(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log the numbers, four digits each."""
        words = (
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in scalars(metrics).items()
            if not name.startswith(("train_perf/", "server/"))
        )
        logger.info("%s step %d: %s", self._env, step, ", ".join(words))

    def close(self) -> None:
        """Nothing to close."""


class WandbSink:
    """Weights & Biases; tables and images pass through.

    ``prefix`` goes before names that begin with ``train``: environments share a group there.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self.prefix = ""

    def write(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log to the run."""
        named = {
            self.prefix + name if name.startswith("train") else name: value
            for name, value in metrics.items()
        }
        self._run.log(named, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def local_sinks(env: str, metrics_path: str | None) -> list[Sink]:
    """The sinks that need no account."""
    sinks: list[Sink] = [LogSink(env)]
    if metrics_path:
        sinks.append(JsonlSink(Path(metrics_path), env))
    return sinks


def open_wandb(
    name: str, project: str | None, group: str | None, config: dict[str, Any]
) -> WandbSink | None:
    """A Weights & Biases run; None with a word in the log where it is not installed.

    Raises:
        ConfigError: it is installed and refuses to start, for want of an account say.
    """
    try:
        import wandb
    except ImportError:
        logger.warning("wandb is not installed: metrics go to the log and metrics_path only")
        return None
    suffix = "".join(random.choices(string.ascii_lowercase, k=6))
    try:
        run = wandb.init(
            name=f"{name}-{date.today().isoformat()}-{suffix}",
            project=project or None,
            group=group or None,
            config=config,
        )
    except wandb.Error as error:
        raise ConfigError(
            f"wandb did not start: {error}. Log in, set WANDB_MODE=offline, or pass "
            "--env.use_wandb false"
        ) from error
    return WandbSink(run)


def rollout_table(rollouts: list[list[tuple[Any, ...]]]) -> Any:
    """A wandb table of (text, score, ...) rows; only called with a wandb sink open."""
    import wandb

    rows = [list(row) for group in rollouts for row in group]
    width = max((len(row) for row in rows), default=2)
    columns: list[str | int] = ["text", "score", *(f"column_{i}" for i in range(2, width))]
    table = wandb.Table(columns=columns)
    for row in rows:
        table.add_data(*row, *([None] * (width - len(row))))
    return table
