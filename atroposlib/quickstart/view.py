"""Views of a run: a live panel on a terminal, one line per step anywhere else.

``panel`` and ``step_line`` are pure functions of a snapshot.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from atroposlib.quickstart.sources import RunSnapshot

BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 48
WAIT_LOG_INTERVAL_S = 10.0


def sparkline(values: Sequence[float], width: int = CURVE_WIDTH) -> str:
    """Draw the curve of values between 0 and 1, newest at the right, averaged to ``width``."""
    if not values:
        return ""
    columns = min(width, len(values))
    edges = [round(i * len(values) / columns) for i in range(columns + 1)]
    means = [sum(values[lo:hi]) / (hi - lo) for lo, hi in zip(edges, edges[1:], strict=False)]
    top = len(BARS) - 1
    return "".join(BARS[max(0, min(top, round(mean * top)))] for mean in means)


def formatted(value: float | None, form: str = ".2f", unit: str = "") -> str:
    return "–" if value is None else f"{value:{form}}{unit}"


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def panel(s: RunSnapshot) -> RenderableType:
    """Render the live view of one snapshot."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", justify="right")
    rows.add_column()
    rows.add_row("phase", Text(s.phase, style="bold"))
    progress = Table.grid(padding=(0, 1))
    progress.add_row(
        f"{s.step} of {s.steps}",
        ProgressBar(total=max(1, s.steps), completed=s.step, width=30),
    )
    rows.add_row("step", progress)
    for name, values in (("reward", s.rewards), ("exact", s.exacts)):
        latest = values[-1] if values else None
        rows.add_row(
            name, Text.assemble(formatted(latest), "  ", (sparkline(values), "green"))
        )
    if s.heldout:
        points = "   ".join(f"step {step}: {exact:.2f}" for step, exact in s.heldout[-4:])
        rows.add_row("held out", Text(points))
    rows.add_row(
        "tokens/s",
        f"{formatted(s.generate_tokens_per_s, '.0f')} generated, "
        f"{formatted(s.train_tokens_per_s, '.0f')} trained",
    )
    rows.add_row(
        "staleness",
        f"{formatted(s.staleness_mean, '.1f')} versions, at most {formatted(s.staleness_max, '.0f')}",
    )
    rows.add_row("mismatch", f"{formatted(s.mismatch, '.1e')} nats between server and trainer")
    rows.add_row(
        "weights",
        f"version {formatted(s.server_version, 'd')} at the server, "
        f"{formatted(s.trainer_version, 'd')} at the trainer",
    )
    waits = Text("\n".join(s.waits)) if s.waits else Text("nobody reports yet", style="dim")
    rows.add_row("who waits", waits)
    return Panel(
        Group(rows),
        title=f"[bold]atropos quickstart[/] · {escape(s.title)}",
        subtitle=clock(s.elapsed_s),
        border_style="blue",
    )


def step_line(s: RunSnapshot) -> str:
    """Format one step as a line, for a log file or a pipe."""
    exact = s.exacts[-1] if s.exacts else None
    reward = s.rewards[-1] if s.rewards else None
    return (
        f"step {s.step}/{s.steps}  reward {formatted(reward)}  exact {formatted(exact)}  "
        f"{formatted(s.generate_tokens_per_s, '.0f')} tok/s generated  "
        f"{formatted(s.train_tokens_per_s, '.0f')} tok/s trained  "
        f"staleness {formatted(s.staleness_max, '.0f')}  mismatch {formatted(s.mismatch, '.1e')}  "
        f"version {formatted(s.server_version, 'd')}  {clock(s.elapsed_s)}"
    )


class View(ABC):
    """Output of the launcher."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @abstractmethod
    def show(self, snapshot: RunSnapshot) -> None: ...

    @abstractmethod
    def waiting(self, line: str) -> None: ...

    def print_line(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Do nothing."""


class LiveView(View):
    """A panel that is redrawn in place; printed lines scroll above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def show(self, snapshot: RunSnapshot) -> None:
        self._live.update(panel(snapshot))

    def waiting(self, line: str) -> None:
        self._live.update(Text(line, style="dim"))

    def close(self) -> None:
        self._live.stop()


class PlainView(View):
    """Lines only; the same wait is repeated at most every ten seconds."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._shown_steps = 0
        self._quiet_until = 0.0

    def show(self, snapshot: RunSnapshot) -> None:
        if snapshot.step > self._shown_steps:
            self._shown_steps = snapshot.step
            self.print_line(step_line(snapshot))

    def waiting(self, line: str) -> None:
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + WAIT_LOG_INTERVAL_S
            self.print_line(line)


def open_view(console: Console, live: bool) -> View:
    return LiveView(console) if live and console.is_terminal else PlainView(console)
