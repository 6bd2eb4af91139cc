"""Folders of runs below a root: places and contents.

Only files below the root are read, also where a link leads out of it. A run may go on meanwhile.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import msgspec

from atroposlib.api.archive.index import Index
from atroposlib.api.archive.load import place
from atroposlib.api.store.sqlite import DATABASE
from atroposlib.errors import ConfigError
from atroposlib.run_status.ended import OUTCOME, RunOutcome, outcome_of
from atroposlib.run_status.heldout import Heldout
from atroposlib.run_status.sources import JsonLines
from atroposlib.settings.merge import Settings
from atroposlib.settings.yaml_file import read_yaml
from atroposlib.trackers import finite_numbers
from atroposlib.trackers.jsonl import RESUMED, last_run
from atroposlib.utils.command.run_folder import METRICS
from atroposlib.workbench.overlay import xs_of
from atroposlib.workbench.run_settings import RecordedSettings, recorded_settings

MAX_DEPTH = 8  # folders between the root and a run
MAX_RUNS = 2000
KEY_CHARACTERS = 12
INDEX = "archive/index.sqlite"
WIRING = "launch/wiring.yaml"
SIGNS = (METRICS, OUTCOME, WIRING, DATABASE)  # files that only a run has
KEPT = ("run_id", RESUMED)  # words of a step that are no numbers


@dataclass(frozen=True)
class RunDirectory:
    """A folder of a run, and the name by which the workbench shows it."""

    root: Path  # resolved
    path: Path
    name: str

    @property
    def key(self) -> str:
        """A short name for addresses."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:KEY_CHARACTERS]

    @property
    def data(self) -> Path:
        """The data directory of its rollout API."""
        return Path(place(str(self.path)))

    def file(self, name: str) -> Path | None:
        """A file or folder of the run; None where it is missing or lies outside of the root."""
        path = self.path / name
        is_inside = path.resolve().is_relative_to(self.root)
        return path if is_inside and path.exists() else None


def find_runs(root: Path) -> list[RunDirectory]:
    """The runs below ``root``, or ``root`` alone where it is a run; sorted by name.

    Raises ConfigError: ``root`` is no folder.
    """
    if not root.is_dir():
        raise ConfigError(f"no folder {root}: give the folder that holds the runs")
    inside = root.resolve()
    if is_run(root):
        return [RunDirectory(inside, root, root.resolve().name)]
    runs = [
        RunDirectory(inside, path, path.relative_to(root).as_posix())
        for path in _run_paths(root)
    ]
    return sorted(runs, key=lambda run: run.name)[:MAX_RUNS]


def is_run(path: Path) -> bool:
    inside = Path(place(str(path)))
    return any((path / name).is_file() for name in SIGNS) or (inside / DATABASE).is_file()


def _run_paths(root: Path) -> Iterator[Path]:
    for folder, names, _ in os.walk(root, followlinks=False):
        path = Path(folder)
        depth = len(path.relative_to(root).parts)
        if path != root and is_run(path):
            yield path
            names.clear()  # a run holds no other run
        elif depth >= MAX_DEPTH:
            names.clear()
        else:
            names[:] = [name for name in names if not name.startswith(".")]


def run_at(word: str) -> RunDirectory:
    """The run of a folder that a command names.

    Raises ConfigError: it holds none.
    """
    path = Path(word)
    if not path.is_dir() or not is_run(path):
        problem = "is no folder of a run: it has no metrics.jsonl and no data of a rollout API"
        raise ConfigError(f"{word} {problem}")
    return RunDirectory(path.resolve(), path, path.resolve().name)


# --- contents of the files ------------------------------------------------------------------


@dataclass
class RunFiles:
    """Incremental reader of the files of a run."""

    run: RunDirectory
    _lines: JsonLines = field(init=False)
    _reduced: int = 0

    def __post_init__(self) -> None:
        self._lines = JsonLines(self.run.path / METRICS)

    def steps(self) -> list[dict[str, Any]]:
        """The numbers of each step: of metrics.jsonl, else of the trainer's reports in the index.

        An evaluation before the first step is step 0.
        """
        if self.run.file(METRICS) is None:
            return indexed_steps(self.index())
        with suppress(OSError, ValueError):
            self._lines.read()
        rows = self._lines.rows
        if len(rows) < self._reduced:
            self._reduced = 0
        # Lists of keys are most of a line: a page over many runs has no room for the lists.
        rows[self._reduced :] = map(numbers_of_step, rows[self._reduced :])
        self._reduced = len(rows)
        return last_run(rows, with_start=True)

    def index(self) -> Index | None:
        """The index of rollouts, for reading; None where there is none."""
        data = self.run.data
        where = data if data == self.run.path else data.relative_to(self.run.path)
        path = self.run.file(INDEX if data == self.run.path else f"{where}/{INDEX}")
        return None if path is None else Index(path, read_only=True)

    def sources(self) -> Mapping[str, Mapping[str, str]]:
        """Package, version and digest of each environment, by its name."""
        index = self.index()
        if index is None:
            return {}
        with suppress(apsw.Error, msgspec.MsgspecError):
            return index.run.sources
        return {}

    def outcome(self) -> RunOutcome | None:
        return outcome_of(self.run.path) if self.run.file(OUTCOME) else None

    def settings(self) -> RecordedSettings:
        """The settings that the launcher wrote for trainer and environments."""
        settings: dict[str, Settings] = {}
        folders, problem = [self.run.path, self.run.path.resolve()], ""
        for path in sorted((self.run.path / "launch").glob("*.yaml")):
            name = f"launch/{path.name}"
            if self.run.file(name) is None:
                continue
            try:
                content = read_yaml(path)
            except ConfigError as error:
                problem = str(error)
                continue
            if name != WIRING:
                settings[path.stem] = content
            elif isinstance(origin := content.values.get("log_dir"), str):
                # A folder may have been copied or renamed since.
                folders.append(Path(origin))
        return recorded_settings(settings, folders, problem)

    def heldout(self) -> Heldout | None:
        """The held-out checks; None without a check."""
        path = self.run.file("heldout")
        if path is None:
            return None
        steps = [f"heldout/{step.name}/samples.jsonl" for step in path.iterdir()]
        outside = [s for s in steps if (self.run.path / s).exists() and not self.run.file(s)]
        heldout = Heldout(path)
        return heldout if not outside and heldout.read() else None


def numbers_of_step(row: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a step, and the words by which a restart is known."""
    # Each line has the same names: a copy of each per line would be most of the memory.
    numbers = {sys.intern(name): value for name, value in finite_numbers(row).items()}
    return {**numbers, **{name: row[name] for name in KEPT if name in row}}


def indexed_steps(index: Index | None) -> list[dict[str, Any]]:
    """The numbers of each step that the trainer reported to the API."""
    if index is None:
        return []
    sql = "SELECT step, body FROM step WHERE role = 'trainer' ORDER BY step"
    with suppress(apsw.Error, msgspec.MsgspecError):
        return [
            {**finite_numbers(msgspec.json.decode(body, type=dict[str, Any])), "step": step}
            for step, body in index.read(sql)
        ]
    return []


def totals_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Last step, sampled tokens and seconds of a run."""
    tokens = xs_of(rows, "tokens")
    return {
        "steps": int(rows[-1].get("step", 0)) if rows else 0,
        "tokens": tokens[-1] if tokens else 0.0,
        "seconds": seconds_of(rows),
    }


def seconds_of(rows: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of all steps: pauses between a stop and the next start do not count."""
    return math.fsum(
        value for row in rows for name, value in row.items() if name.startswith("seconds_")
    )
