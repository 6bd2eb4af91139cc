"""Watchdog that ends the processes of a launcher that was killed.

Runs as a script with the standard library only. The launcher holds the writing end of our
standard input and writes ``+<group>`` or ``-<group>`` for every process group it starts or
ends; end of file means that the launcher is gone, however it died. A parent-death signal
would reach only direct children and exists on Linux alone; a pipe works everywhere.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable

GRACE_S = 5.0


def groups_left(lines: Iterable[str]) -> list[int]:
    """Return the process groups that were started and not ended, in order of their start."""
    alive: dict[int, None] = {}
    for line in lines:
        sign, number = line[:1], line[1:].strip()
        if not number.isdigit() or int(number) <= 1:
            continue  # a torn last line, or a number that would mean "everything"
        if sign == "+":
            alive[int(number)] = None
        elif sign == "-":
            alive.pop(int(number), None)
    return list(alive)


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return whether the group still had a member."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
        return False
    return True


def end_groups(groups: list[int], grace_s: float = GRACE_S) -> None:
    """Send SIGTERM to every group, and SIGKILL after ``grace_s`` seconds."""
    for group in groups:
        signal_group(group, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(signal_group(group, 0) for group in groups):
        time.sleep(0.05)
    for group in groups:
        signal_group(group, signal.SIGKILL)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # signals to the launcher must not end it
    end_groups(groups_left(sys.stdin))
