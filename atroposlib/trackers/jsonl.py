"""metrics.jsonl, a JSON object per step: the writer, and a reader aware of restarts.

Each line is written at once and flushed. A restarted trainer removes the lines of steps that it
trains again, and appends ``{"run_id": ..., "resumed_from": 5}`` and the steps from 6 on: each
step of a run has a single line. :func:`read_steps` also reads files with repeated steps, which
older versions wrote.

A line ``{"evaluated_step": 5, "evaluated_version": 5, "eval/exact": 0.5}`` is of an evaluation that
ended later than step 5: a reader adds its numbers to that step.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESUMED = "resumed_from"
EVALUATED = "evaluated_step"  # step whose weights a line is about, which came later
NOT_OF_STEP = (EVALUATED, "run_id", "time")


class Jsonl:
    """Appends records to a file. Raises OSError: the file cannot be opened."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        _drop_torn_line(self._file)

    def rewind(self, run_id: str, step: int) -> int:
        """Remove the lines of the run's steps after ``step``; return how many there were.

        The file is replaced at once: a kill leaves the old lines or the new lines.
        """
        path = Path(self._file.name)
        lines = path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if not _is_after(line, run_id, step)]
        if len(kept) < len(lines):
            draft = path.with_name(f".{path.name}.draft")
            draft.write_bytes(b"".join(kept))
            os.replace(draft, path)
            self._file.close()
            self._file = path.open("a+b")
        return len(lines) - len(kept)

    def write(self, record: Mapping[str, Any]) -> None:
        clean = {name: json_number(value) for name, value in record.items()}
        self._file.write(json.dumps(clean).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _is_after(line: bytes, run_id: str, step: int) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    if not isinstance(record, dict) or record.get("run_id") != run_id:
        return False
    last = record.get("step", record.get(RESUMED, record.get(EVALUATED)))
    return isinstance(last, int) and last > step


def _drop_torn_line(file: Any) -> None:
    """Remove an incomplete last line of a killed process; the next line would be joined to it."""
    size = file.seek(0, 2)
    start = max(0, size - (1 << 20))
    file.seek(start)
    tail = file.read()
    if tail and not tail.endswith(b"\n"):
        file.truncate(start + tail.rfind(b"\n") + 1)


def json_number(value: Any) -> Any:
    """``value``, or None for NaN and infinity: JSON has no form for these values."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_steps(path: Path) -> list[dict[str, Any]]:
    """The records of the last run in the file, by step, in order; torn lines are skipped."""
    return last_run(_lines(path))


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def last_run(
    lines: Iterable[Mapping[str, Any]], with_start: bool = False
) -> list[dict[str, Any]]:
    """The steps of the last run in ``lines`` (in file order), with the last line of each step.

    Example: steps 1 2 3, resumed from 1, steps 2 3 4 give steps 1 2 3 4. An evaluation of a step
    that is not there is left out, that of step 0 too unless ``with_start``.
    """
    steps: dict[int, dict[str, Any]] = {}
    run_id: Any = None
    for line in lines:
        if line.get("run_id") != run_id:
            run_id, steps = line.get("run_id"), {}
        if RESUMED in line:
            done = int(line[RESUMED])
            steps = {step: record for step, record in steps.items() if step <= done}
        elif "step" in line:
            steps[int(line["step"])] = dict(line)
        elif with_start and line.get(EVALUATED) == 0:
            steps[0] = {"step": 0, **{k: v for k, v in line.items() if k not in NOT_OF_STEP}}
        elif (evaluated := steps.get(line.get(EVALUATED, -1))) is not None:
            evaluated.update({k: v for k, v in line.items() if k not in NOT_OF_STEP})
    return [steps[step] for step in sorted(steps)]
