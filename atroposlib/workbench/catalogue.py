"""Catalogue of the runs below a root: states, figures and settings, read again where files changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atroposlib.errors import UnknownGroup
from atroposlib.run_status.ended import OUTCOME, RunOutcome
from atroposlib.trackers import finite_number
from atroposlib.utils.command.folder_lock import HOLDER
from atroposlib.utils.command.run_folder import METRICS
from atroposlib.workbench.overlay import (
    Axis,
    band_of,
    curve_keys,
    points_of,
)
from atroposlib.workbench.run_folders import RunDirectory, RunFiles, find_runs, totals_of
from atroposlib.workbench.run_settings import (
    NOT_SET,
    RecordedSettings,
    differing_settings,
    group_label,
    seed_groups,
    short_names,
)
from atroposlib.workbench.run_verdict import run_verdict

SCAN_S = 5.0  # between two walks through the folders
THREADS = 8  # runs that are asked at a time
MAX_KEYS = 12  # curves of a reply
REWARD = "reward_mean"
ENVIRONMENT_REWARDS = (
    REWARD,
    "reward",
)  # the trainer writes the first, older files have the second


@dataclass
class CatalogueEntry:
    """A run as last read."""

    run: RunDirectory
    files: RunFiles
    rows: Sequence[Mapping[str, Any]] = ()
    settings: RecordedSettings = RecordedSettings()
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    outcome: RunOutcome = RunOutcome("running")
    verdict: Mapping[str, Any] = field(default_factory=dict)
    address: str | None = None
    signature: tuple[Any, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)  # a row of the table
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> None:
        """Read what changed since the last time; a run that goes on is asked again."""
        files = self.files
        with self.lock:
            now = signature_of(self.run)
            if now == self.signature and self.verdict and self.address is None:
                return
            self.signature = now
            self.rows, self.settings = files.steps(), files.settings()
            self.sources = files.sources()
            self.outcome = files.outcome() or RunOutcome("running")
            self.verdict, self.address = run_verdict(self.run, files)
            self.document = self._table_row()

    def _table_row(self) -> dict[str, Any]:
        """The run as JSON values of the table."""
        last = self.rows[-1] if self.rows else {}
        rewards = (finite_number(last.get(name)) for name in ENVIRONMENT_REWARDS)
        return {
            "key": self.run.key,
            "name": self.run.name,
            "path": str(self.run.path),
            "state": self.verdict["state"],
            "line": self.verdict["line"],
            "remedy": self.verdict["remedy"],
            "live": self.address is not None,
            "total": self.outcome.steps or None,
            "reward": next((value for value in rewards if value is not None), None),
            **totals_of(self.rows),
            "ended": finite_number(last.get("time")),
            "problem": self.settings.problem,
        }


class Catalogue:
    """All runs below ``root``, by their keys. For threads.

    Args:
        clock: seconds.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.root = root
        self._clock = clock
        self._entries: dict[str, CatalogueEntry] = {}
        self._scanned: float | None = None
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="runs")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def refresh(self) -> list[CatalogueEntry]:
        """All runs as they are now, sorted by name."""
        with self._lock:
            self._scan()
            entries = list(self._entries.values())
        # Each waits for its API at most as long as a poll takes.
        list(self._threads.map(CatalogueEntry.read, entries))
        return entries

    def entry(self, key: str) -> CatalogueEntry:
        """The run of a key, as last read.

        Raises:
            UnknownGroup: there is none.
        """
        with self._lock:
            if key not in self._entries:
                self._scan()
            if key not in self._entries:
                raise UnknownGroup(f"no run {key[:50]} is below {self.root}")
            entry = self._entries[key]
        if not entry.verdict:
            entry.read()
        return entry

    def entries(self, keys: str) -> list[CatalogueEntry]:
        """The runs of keys with commas between them."""
        return [self.entry(key) for key in keys.split(",") if key]

    def _scan(self) -> None:
        now = self._clock()
        if self._scanned is not None and now - self._scanned < SCAN_S:
            return
        self._scanned = now
        runs = {run.key: run for run in find_runs(self.root)}
        self._entries = {
            key: self._entries.get(key) or CatalogueEntry(run, RunFiles(run))
            for key, run in runs.items()
        }


def signature_of(run: RunDirectory) -> tuple[Any, ...]:
    """Times and sizes of the files with the state of a run."""
    marks: list[Any] = []
    names = (METRICS, OUTCOME, HOLDER, "launch", "launch/wiring.yaml", "heldout")
    for path in (*(run.path / name for name in names), run.data / HOLDER):
        with suppress(OSError):
            about = path.stat()
            marks.append((about.st_mtime_ns, about.st_size))
            continue
        marks.append(None)
    return tuple(marks)


# --- documents of the page ------------------------------------------------------------------


def runs_document(root: Path, entries: Sequence[CatalogueEntry]) -> dict[str, Any]:
    """All runs, the settings that differ, and the groups that differ in the seed only."""
    settings = {entry.run.key: entry.settings for entry in entries}
    known = [run for run in settings.values() if run.values]
    differing = differing_settings(known)
    names = short_names(differing)
    groups = seed_groups(settings, {entry.run.key: entry.sources for entry in entries})
    runs = []
    for entry in entries:
        values = entry.settings.values
        shown = {name: values.get(name, NOT_SET) for name in differing} if values else {}
        runs.append({**entry.document, "settings": shown})
    return {
        "root": str(root),
        "settings": [{"name": name, "short": names[name]} for name in differing],
        "runs": runs,
        "groups": [
            {"label": group_label([settings[key] for key in group], names), "runs": group}
            for group in groups
        ],
    }


def curves_document(
    entries: Sequence[CatalogueEntry], keys: str, axis: Axis, is_grouped: bool
) -> dict[str, Any]:
    """Curves of several runs: per key a series per run, or per group with a band.

    A point is x, mean, lowest, highest.
    """
    known = curve_keys([entry.rows for entry in entries])
    wanted = [key for key in keys.split(",") if key in known][:MAX_KEYS]
    by_key = {entry.run.key: entry for entry in entries}
    groups = [[key] for key in by_key]
    settings = {key: entry.settings for key, entry in by_key.items()}
    if is_grouped:
        groups = seed_groups(settings, {key: entry.sources for key, entry in by_key.items()})
    differing = differing_settings([run for run in settings.values() if run.values])
    names = short_names(differing)
    series = []
    for group in groups:
        label = group_label([settings[key] for key in group], names)
        title = (
            by_key[group[0]].run.name if len(group) == 1 else f"{label or 'equal settings'}"
        )
        curves = {
            key: band_of([points_of(by_key[name].rows, key, axis) for name in group])
            for key in wanted or known[:MAX_KEYS]
        }
        series.append({"label": title, "runs": group, "curves": curves})
    return {"keys": known, "shown": wanted or known[:MAX_KEYS], "series": series}
