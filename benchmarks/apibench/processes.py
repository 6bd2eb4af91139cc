"""CPU and memory of another process, as the kernel counts them (Linux)."""

from __future__ import annotations

import os
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of a process and its children; CPU is user and system time of all threads."""

    cpu_s: float
    rss_bytes: int
    written_bytes: int = 0  # disk writes


def usage(pid: int) -> Usage:
    """Resources that ``pid`` has used so far.

    Raises:
        OSError: the process does not exist, or /proc does not.
    """
    used = [_one(each) for each in _family(pid)]
    written = (u.written_bytes for u in used)
    return Usage(sum(u.cpu_s for u in used), sum(u.rss_bytes for u in used), sum(written))


def _one(pid: int) -> Usage:
    """Ticks count threads that are gone, nanoseconds do not: the larger sum is nearer."""
    fields = (_PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    ticks = (int(fields[11]) + int(fields[12])) * _TICK_S
    pages = int(fields[21])
    rss = pages * os.sysconf("SC_PAGE_SIZE")
    return Usage(max(ticks, _threads_s(pid)), rss, _bytes_written(pid))


def peak_rss_bytes(pid: int) -> int:
    """The most memory that ``pid`` alone had resident at a time."""
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _bytes_written(pid: int) -> int:
    for line in (_PROC / str(pid) / "io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    return 0


def _threads_s(pid: int) -> float:
    total = 0.0
    for thread in (_PROC / str(pid) / "task").iterdir():
        try:
            total += int((thread / "schedstat").read_text().split()[0]) / 1e9
        except OSError:  # the thread ended meanwhile, or the kernel lacks this count
            continue
    return total


def _family(pid: int) -> list[int]:
    family = [pid]
    for thread in (_PROC / str(pid) / "task").iterdir():
        try:
            children = (thread / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            family += _family(int(child))
    return family


WARM_BYTES = 512 * 2**20


def warm_page_cache(folder: Path | None = None) -> None:
    """Write a file and delete it, so that the pages of the next file are already backed.

    A virtual machine gives idle memory back to its host. The first use of a page then costs ten
    times the copy into it, which is charged to the process that writes.
    """
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(WARM_BYTES // 2**20):
            file.write(bytes(2**20))


def machine() -> str:
    """Line about this machine, without its name."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    model = "unknown CPU"
    for line in (_PROC / "cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    python = f"Python {platform.python_version()}"
    return f"{cores} cores ({model}), {memory:.0f} GiB, {system}, {python}"
