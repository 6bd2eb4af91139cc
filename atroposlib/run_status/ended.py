"""Folder of a run that no process serves any more: done, stopped or failed, and what next.

    launcher   records the outcome in launch/outcome.json: running at its start, then how it ended
    here       outcome, metrics.jsonl and logs -> verdict

Logs are appended to, so lines of an earlier start are no evidence about the last start: each start
writes a line into the log first.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import atroposlib
from atroposlib import __version__
from atroposlib.errors import AtroposError
from atroposlib.run_status.evidence import Finding, Severity
from atroposlib.run_status.verdict import State, StatusVerdict
from atroposlib.text.lines import since_last_start
from atroposlib.utils.command import logs
from atroposlib.utils.command.references import digest
from atroposlib.utils.io import write_whole

OUTCOME, END_RECORD = "launch/outcome.json", "launch/ended.json"
TAIL_BYTES = 20_000  # read from the end of each log
_ERROR = re.compile(r"error|Traceback|Exception|killed", re.IGNORECASE)
_SHOWN = ("step", "version", "reward_mean", "logprob_mismatch_mean", "staleness_mean")
AGAIN = "the same command goes on from its last checkpoint"
OUTCOME_STATES = ("running", "done", "stopped", "failed")


@dataclass(frozen=True)
class RunOutcome:
    """How the last launch of a run ended; ``running`` of a launcher that left no word."""

    state: Literal["running", "done", "stopped", "failed"]
    steps: int = 0  # total of the run; 0: unknown
    problem: str = ""  # error that ended a failed run, or why another run stopped
    model: str = ""  # folder of the final model
    code: str = ""  # version and digest of this package, which ran


NO_ENVIRONMENT = "every environment has ended"  # the problem of a run that stopped by that


@contextmanager
def recorded_outcome(
    folder: Path, steps: int, model: Path, interrupted: type[AtroposError]
) -> Iterator[list[str]]:
    """Record the outcome of the launch that runs inside: done, stopped, or failed.

    ``model`` is the folder in which a run that is done leaves its model, ``interrupted`` the error
    by which a signal ends a launch. A launch that ends before its last step adds the reason to the
    list it is given: it counts as stopped, with a model.
    """
    outcome = RunOutcome("running", steps, code=package_code())
    path, reasons = folder / OUTCOME, list[str]()

    def record(**facts: Any) -> None:
        write_whole(path, json.dumps(asdict(replace(outcome, **facts))) + "\n")

    record()
    try:
        yield reasons
    except (interrupted, KeyboardInterrupt, SystemExit):
        record(state="stopped")
        raise
    except AtroposError as error:
        record(state="failed", problem=str(error))
        raise
    state = "stopped" if reasons else "done"
    record(state=state, problem="; ".join(reasons), model=str(model))


def package_code() -> str:
    """Version and digest of this package, the trainer included."""
    package = Path(atroposlib.__file__).parent
    parts = (package, package.with_name("example_trainer"))
    return f"{__version__} {digest(path for path in parts if path.is_dir())}"


def outcome_of(folder: Path) -> RunOutcome | None:
    """The recorded outcome; None without a readable record."""
    try:
        known = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
        outcome = RunOutcome(**known)
    except (OSError, ValueError, TypeError):
        # The launchers of clusters leave this record alone.
        ended = (folder / END_RECORD).is_file()
        return RunOutcome("done") if ended else None
    return outcome if outcome.state in OUTCOME_STATES else None


def ended_verdict(
    folder: Path, steps: Sequence[Mapping[str, Any]] | None = None
) -> StatusVerdict:
    """The verdict on a run of which no process answers, from the files of its folder.

    Args:
        steps: contents of metrics.jsonl; None: they are read.
    """
    from atroposlib.trackers.jsonl import read_steps

    metrics = folder / "metrics.jsonl"
    rows = steps or []
    if steps is None and metrics.is_file():
        rows = read_steps(metrics)
    outcome = outcome_of(folder) or RunOutcome("running")
    errors = [line for log in sorted(folder.glob("logs/*.log")) if (line := _last_error(log))]
    last = int(rows[-1].get("step", 0)) if rows else 0
    place = f"step {last}" + (f" of {outcome.steps}" if outcome.steps else "")
    state: State
    if outcome.state == "done":
        state, line = "done", place
        remedy = f"model {outcome.model}" if outcome.model else "the model is in its save_path"
        errors = []
    elif outcome.state == "failed" or (outcome.state == "running" and errors):
        state, line = "failed", f"{place}: {outcome.problem or errors[0]}"
        remedy = f"see the first error in {folder / 'logs'}; {AGAIN}"
    elif rows or outcome.state == "stopped":
        state, line, remedy = "stopped", place, AGAIN
        if outcome.problem:
            line += f": {outcome.problem}"
        if outcome.model:
            remedy = f"model {outcome.model}; with more data {AGAIN}"
    else:
        state, line = "stopped", "no step was trained: has it begun?"
        remedy = f"see {folder / 'logs'}"
    evidence = [f"{metrics}: {len(rows)} steps"]
    if rows:
        known = (name for name in _SHOWN if rows[-1].get(name) is not None)
        evidence.append(", ".join(f"{name} {rows[-1][name]:.6g}" for name in known))
    severity: Severity = "stuck" if state == "failed" else "waiting"
    cause = f"the run has ended: {state} at {line}" if rows else line
    finding = Finding(0, "ended", severity, cause, (*evidence, *errors), remedy, time.time())
    return StatusVerdict(state, line, remedy, (finding,))


def _last_error(log: Path) -> str:
    """The last line of a log that reports an error since its last start; empty without an error."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - TAIL_BYTES))
        text = stream.read().decode("utf-8", "replace")
    matching = [line for line in since_last_start(text).splitlines() if _ERROR.search(line)]
    return f"{log.name}: {logs.redact(matching[-1])[:300]}" if matching else ""
