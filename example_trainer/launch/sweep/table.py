"""The table of a sweep: a line per run, live on a terminal, and whole at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from atroposlib.run_status.view import clock, format_value
from atroposlib.text.lines import aligned_lines
from atroposlib.trackers.jsonl import read_steps
from atroposlib.utils.command import logs

LAST_STEPS = 5  # of which the reward is the mean
PROGRESS_S = 30.0  # between two lines about a run, where no table is live
COLUMNS = ("run", "state", "step", f"reward (last {LAST_STEPS})", "time")


@dataclass
class TableRow:
    """A run in the table. ``seconds`` count from this start."""

    name: str
    metrics: Path
    steps: int  # total
    state: str
    problem: str = ""
    started: float | None = None
    seconds: float = 0.0
    step: int = 0
    reward: float | None = None

    def refresh(self, now: float) -> None:
        """Read the last steps of the run."""
        if self.started is not None:
            self.seconds = now - self.started
        rows = read_steps(self.metrics) if self.metrics.is_file() else []
        rewards = [row["reward_mean"] for row in rows[-LAST_STEPS:] if "reward_mean" in row]
        known = [reward for reward in rewards if isinstance(reward, (int, float))]
        self.step = int(rows[-1].get("step", 0)) if rows else 0
        self.reward = sum(known) / len(known) if known else None

    def cells(self) -> tuple[str, ...]:
        """The texts of the columns, and the problem."""
        took = clock(self.seconds) if self.seconds else ""
        reward = format_value(self.reward, ".3f")
        return self.name, self.state, f"{self.step}/{self.steps}", reward, took, self.problem


def table_lines(rows: Sequence[TableRow]) -> list[str]:
    """The table as lines of aligned columns."""
    lines = aligned_lines([(*COLUMNS, ""), *(row.cells() for row in rows)])
    return [logs.printable(line) for line in lines]


class SweepView:
    """Shows the table: live on a terminal, else a line per event and per PROGRESS_S of a run."""

    def __init__(
        self, console: Console, live: bool, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._clock = console, clock_s
        self._live = Live(console=console, auto_refresh=False) if live else None
        self._shown_at: dict[str, float] = {}
        if self._live is not None:
            self._live.start()

    def print_line(self, text: str) -> None:
        self._console.print(
            logs.printable(text), markup=False, highlight=False, soft_wrap=True
        )

    def show(self, rows: Sequence[TableRow]) -> None:
        """Show what changes: the runs that are running."""
        now = self._clock()
        running = [row for row in rows if row.state == "running"]
        for row in running:
            row.refresh(now)
        if self._live is not None:
            self._live.update(
                Text("\n".join(table_lines(rows)), no_wrap=True, overflow="ellipsis"),
                refresh=True,
            )
            return
        for row in running:
            if now - self._shown_at.setdefault(row.name, now) >= PROGRESS_S:
                self._shown_at[row.name] = now
                _, state, step, reward, took, _ = row.cells()
                self.print_line(f"{row.name}: {state}, step {step}, reward {reward}, {took}")

    def close(self, rows: Sequence[TableRow]) -> None:
        """Leave the whole table behind, as the last of the output."""
        if self._live is not None:
            self._live.update(Text(""), refresh=True)
            self._live.stop()
        for line in table_lines(rows):
            self.print_line(line)
