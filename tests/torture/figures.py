"""Result of a campaign as one line, and the memory of this process."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

MB = 2**20


class Figures(dict[str, float]):
    """Named numbers, in the order in which they were noted."""

    def line(self, campaign: str) -> str:
        return f"{campaign}: " + ", ".join(f"{show(v)} {k}" for k, v in self.items())


def show(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def slope(values: list[float]) -> float:
    """Of the least-squares line, per step."""
    n = len(values)
    middle, mean = (n - 1) / 2, sum(values) / n
    spread = sum((i - middle) ** 2 for i in range(n))
    return sum((i - middle) * (v - mean) for i, v in enumerate(values)) / spread


def rss_bytes(pid: int | None = None) -> int:
    """Resident memory of a process now (Linux)."""
    pages = Path(f"/proc/{pid or os.getpid()}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def settled_rss_bytes() -> int:
    gc.collect()
    return rss_bytes()


def in_own_process(run: Callable[..., Figures], *sizes: int) -> Figures:
    """Memory is measured where nothing ran before: freed memory hides what is leaked."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(run, *sizes).result()


@contextmanager
def fast_folder() -> Iterator[Path]:
    """A folder in memory where there is one: an fsync there costs nothing, and what is
    tested here is what the code requests of the disk, not how long the disk takes."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="torture-", dir=place) as name:
        yield Path(name)
