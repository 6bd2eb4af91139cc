"""Evaluation by a user command, while the servers hold a single version.

The trainer waits for the command, so no weights change during it; environments go on
generating. A failed evaluation is counted and printed. It never becomes a number and never
ends training.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.distributed.ranks import Ranks
from example_trainer.model.model_dir import TrainerState
from example_trainer.run.connect import WaitReporter
from example_trainer.settings.run import RunSettings
from example_trainer.settings.section import fill_words
from example_trainer.state import Frequency

logger = logging.getLogger(__name__)
RESULTS, OUTPUT = "metrics.json", "output.txt"
POLL_S = 0.2
TAIL_CHARS = 2000


class Evaluator:
    """Runs ``cfg.eval_command`` on the first rank. All methods are collective.

    Args:
        waits: lets a signal end the evaluation, and shows that the trainer waits for it.
    """

    def __init__(
        self, cfg: RunSettings, world: Ranks, waits: WaitReporter | None = None
    ) -> None:
        self._cfg, self._world, self._waits = cfg, world, waits
        self.failures = 0
        self.frequency = Frequency(
            cfg.eval_every_epochs, cfg.eval_every_steps, cfg.eval_every_s, time.time()
        )

    def at_start(self, state: TrainerState, urls: Sequence[str]) -> dict[str, float]:
        """Return the metrics before the first step, if the settings request an evaluation."""
        if not self._cfg.eval_at_start or self._cfg.eval_command is None or state.step > 0:
            return {}
        return run_on_rank0(self._world, lambda: self._evaluate(state, urls))

    def maybe(
        self, state: TrainerState, epoch_ended: bool, urls: Sequence[str]
    ) -> dict[str, float]:
        """Return metrics after this step if due, as ``eval/<name>``; call once per step.

        ``eval_failures`` counts failed evaluations so far. A stop signal raises Stopped.
        """
        if self._cfg.eval_command is None:
            return {}

        def evaluate() -> dict[str, float]:
            due = self.frequency.due(epoch_ended, time.time())
            return self._evaluate(state, urls) if due else {}

        return run_on_rank0(self._world, evaluate)

    def _evaluate(self, state: TrainerState, urls: Sequence[str]) -> dict[str, float]:
        out = Path(self._cfg.save_path).resolve() / "eval" / f"step_{state.step}"
        problem, metrics = None, dict[str, float]()
        try:
            out.mkdir(parents=True, exist_ok=True)
            (out / RESULTS).unlink(missing_ok=True)  # left by an evaluation that is repeated
            command = fill_words(
                self._cfg.eval_command or [],
                version=state.version,
                step=state.step,
                url=urls[0] if urls else "",
                out=out,
            )
            problem = self._run(command, out / OUTPUT)
            if problem is None and not (metrics := read_metrics(out / RESULTS)):
                problem = f"{out / RESULTS} holds no number"
        except (OSError, ValueError) as error:
            problem = str(error)
        if problem is not None:
            self.failures += 1
            logger.warning(f"EVALUATION FAILED at step {state.step}: {problem}{_tail(out)}")
        return {**metrics, "eval_failures": float(self.failures)}

    def _run(self, command: Sequence[str], output: Path) -> str | None:
        """Run the command to its end or its timeout; return the error, if any."""
        bound_s = self._cfg.eval_timeout_s
        with output.open("wb") as written:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group, ended as a whole
            )
        try:
            end = time.monotonic() + bound_s
            while process.poll() is None:
                if time.monotonic() > end:
                    return f"not done after {bound_s:.0f} s"
                if self._waits is not None:
                    self._waits(f"the evaluation {command[0]}")
                time.sleep(POLL_S)
        finally:
            # The pid is not reused before its exit status is read.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return None if process.returncode == 0 else f"exit status {process.returncode}"


def read_metrics(path: Path) -> dict[str, float]:
    """Read the numbers of a metrics file as ``eval/<name>``; nested names are joined by /.

    Of a file in the format of the environments (``{"results": {"atropos|task|0": ..., "all":
    ...}}``) only the results are read; results of all tasks together get no prefix.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no JSON object.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        raise ValueError(f"{path} is no JSON object")
    if isinstance(document.get("results"), dict):
        document = dict(document["results"])
        document.update(document.pop("all", None) or {})
    return {f"eval/{name}": value for name, value in _numbers(document, "")}


def _numbers(document: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            if math.isfinite(value):
                yield f"{prefix}{name}", float(value)


def _tail(out: Path) -> str:
    """Return the end of the program's output."""
    try:
        text = (out / OUTPUT).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    return f"\n{text[-TAIL_CHARS:]}" if text else ""
