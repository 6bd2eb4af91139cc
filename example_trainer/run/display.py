"""Display of a run: a live table on a terminal, a line per step elsewhere.

MetricsLog --step(record)--> Display <--beat(heartbeat)-- Pulse
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from atroposlib.run_status.view import format_value
from atroposlib.wire import Heartbeat

logger = logging.getLogger(__name__)
SHOWN = ("reward_mean", "loss", "grad_norm", "clip_ratio", "entropy", "staleness_mean")
LAST_STEPS = 12
# Title, name in the record, format. Nine columns fit a terminal of 80.
COLUMNS = (
    ("step", "step", "d"),
    ("reward", "reward_mean", ".3f"),
    ("loss", "loss", ".2g"),
    ("grad", "grad_norm", ".2g"),
    ("kl", "approx_kl", ".1e"),
    ("clip", "clip_ratio", ".1%"),
    ("entropy", "entropy", ".2f"),
    ("stale", "staleness_mean", ".1f"),
    ("tok/s", "tokens_per_s", ".0f"),
)


class LiveTable:
    """The last steps as a table, redrawn in place; printed lines scroll above it."""

    def __init__(self, title: str, steps: int, console: Console | None = None) -> None:
        self._title, self._steps = title, steps
        self._records: deque[Mapping[str, Any]] = deque(maxlen=LAST_STEPS)
        self._beat: Heartbeat | None = None
        console = console or Console(force_terminal=True)
        self._live = Live(console=console, refresh_per_second=2, get_renderable=self._draw)
        self._live.start()

    def step(self, record: Mapping[str, Any]) -> None:
        """Show a finished step."""
        self._records.append(record)
        self._live.refresh()

    def beat(self, beat: Heartbeat) -> None:
        """Show the trainer's phase and wait. Called from any thread."""
        self._beat = beat  # drawn at the next refresh

    def close(self) -> None:
        """Leave the screen as it is."""
        self._live.stop()

    def _draw(self) -> RenderableType:
        return picture(self._title, self._steps, list(self._records), self._beat)


def picture(
    title: str, steps: int, records: list[Mapping[str, Any]], beat: Heartbeat | None
) -> RenderableType:
    """Build the table of these records, the trainer's phase above and seconds below."""
    table = Table(box=None, pad_edge=False, expand=True)
    for heading, _, _ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for record in records:
        table.add_row(*(format_value(record.get(name), form) for _, name, form in COLUMNS))
    last: Mapping[str, Any] = records[-1] if records else {}
    parts: list[Any] = [Text(phase_text(beat), style="bold"), table]
    below = [seconds_line(last)] + [f"{n} {v:.3g}" for n, v in _env_metrics(last)]
    if text := "   ".join(line for line in below if line):
        parts.append(Text(text, style="dim"))
    return Panel(
        Group(*parts),
        title=Text(f"atropos-grpo {title}"),
        subtitle=f"{last.get('step', 0)} of {steps} steps",
        border_style="blue",
    )


def phase_text(beat: Heartbeat | None) -> str:
    """Describe the phase: "waiting for batch: 12 of 64 sequences queued", for example."""
    if beat is None:
        return "starting"
    return beat.phase if beat.waiting_on is None else f"{beat.phase}: {beat.waiting_on}"


def seconds_line(record: Mapping[str, Any]) -> str:
    """Format the seconds of the step's phases, the longest first."""
    spent = [
        (value, name.removeprefix("seconds_"))
        for name, value in record.items()
        if name.startswith("seconds_") and value >= 0.05
    ]
    return ", ".join(f"{name} {value:.1f} s" for value, name in sorted(spent, reverse=True))


def progress_line(record: Mapping[str, Any]) -> str:
    """Format a step as a line, for a log file or a pipe."""
    shown = [f"{name} {record[name]:.4g}" for name in SHOWN if record.get(name) is not None]
    shown += [f"{name} {value:.4g}" for name, value in _env_metrics(record)]
    spent = sum(value for name, value in record.items() if name.startswith("seconds_"))
    return f"step {record['step']}: {', '.join(shown)}, {spent:.1f} s"


def _env_metrics(record: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [
        (name, value)
        for name, value in record.items()
        if name.startswith("env/") and isinstance(value, (int, float))
    ]


class LineDisplay:
    """A line per step; the loop prints waits."""

    def __init__(self, line_of: Callable[[Mapping[str, Any]], str] = progress_line) -> None:
        self._line_of = line_of

    def step(self, record: Mapping[str, Any]) -> None:
        logger.info(self._line_of(record))

    def beat(self, beat: Heartbeat) -> None:
        """Print nothing: a line per heartbeat would hide the steps."""

    def close(self) -> None:
        """Do nothing."""


Display = LineDisplay | LiveTable


def relay(display: Display, send: Callable[[Heartbeat], None]) -> Callable[[Heartbeat], None]:
    """Return a ``send`` for a heartbeat thread that shows each beat before sending it."""

    def both(beat: Heartbeat) -> None:
        display.beat(beat)
        send(beat)

    return both


def open_display(live_table: bool | None, title: str, steps: int) -> Display:
    """Open a table if ``live_table`` (default: stdout is a terminal), else lines."""
    wanted = sys.stdout.isatty() if live_table is None else live_table
    return LiveTable(title, steps) if wanted else LineDisplay()
