"""Runs of a command at each change of a file, each in a new process."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

LOOK_S = 0.5
MOST_S = 8 * 3600.0  # a watch ends so long after the last change
Stamp = tuple[int, int]


def stamp_of(path: Path) -> Stamp:
    """Time of change and size; zeros while an editor replaces the file."""
    try:
        about = path.stat()
    except OSError:
        return 0, 0
    return about.st_mtime_ns, about.st_size


def has_changed(path: Path, before: Stamp, most_s: float = MOST_S) -> bool:
    """Whether the file is another than ``before`` within ``most_s``; looks twice a second."""
    end = time.monotonic() + most_s
    while time.monotonic() < end:
        now = stamp_of(path)
        if now not in (before, (0, 0)):
            return True
        time.sleep(LOOK_S)
    return False


def run_at_each_change(
    command: Sequence[str],
    path: Path,
    run: Callable[[Sequence[str]], int] = subprocess.call,
    most_s: float = MOST_S,
) -> int:
    """Run ``command`` now and at each change; return the last exit status after ``most_s``.

    A change while the command runs counts: it runs again.
    """
    while True:
        before = stamp_of(path)
        status = run(command)
        print(f"-- status {status}; waits for a change of {path} (Ctrl-C ends it)", flush=True)
        if not has_changed(path, before, most_s):
            return status
