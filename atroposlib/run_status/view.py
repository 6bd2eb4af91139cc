"""Views of a run: a live panel on a terminal, a line per step anywhere else.

``panel`` and ``step_line`` are pure functions of a snapshot.
"""

from __future__ import annotations

import logging
import textwrap
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from rich.cells import set_cell_size
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from atroposlib.run_status.sources import RunSnapshot
from atroposlib.utils.command import logs

BARS = " ▁▂▃▄▅▆▇█"
logger = logging.getLogger(__name__)
STATE_STYLES = {
    "healthy": "bold green",
    "done": "bold green",
    "waiting": "bold cyan",
    "stuck": "bold red",
    "unreachable": "bold red",
}
LABEL_WIDTH = 9
FRAME_WIDTH = 6  # border, padding, and the space between label and text
TALL = 32  # terminal lines from which curves have three lines
WAIT_LOG_INTERVAL_S = 10.0
STEP_WAIT_S = 30.0  # time without a step, after which the verdict is printed

Row = tuple[str, RenderableType]  # label and text of a line of the panel


def sparkline(
    values: Sequence[float], width: int = 48, *, lines: int = 1, steps: int | None = None
) -> str:
    """Draw the curve of values between 0 and 1, averaged or stretched to ``width``.

    With ``steps``, the number of values at the end, the whole width stands for all ``steps``; the
    first values of a long run are not squeezed below half of it.
    """
    if not values:
        return ""
    columns = len(values)
    if steps:
        columns = max(round(width * len(values) / steps), min(len(values), width // 2))
    columns = max(1, min(width, columns))
    edges = [i * len(values) // columns for i in range(columns + 1)]
    spans = [values[lo : max(hi, lo + 1)] for lo, hi in zip(edges, edges[1:], strict=False)]
    eighths = 8 * lines - 1
    heights = [1 + round(min(1, max(0, sum(s) / len(s))) * eighths) for s in spans]
    return "\n".join(
        "".join(BARS[min(8, max(0, height - 8 * line))] for height in heights)
        for line in reversed(range(lines))
    )


def format_value(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else f"{value:{form}}"


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def time_left(s: RunSnapshot) -> str:
    if s.left_s is None:
        return ""
    days = s.left_s / 86_400
    return f"about {clock(s.left_s) if days < 2 else f'{days:.0f} days'} left"


def wrap_lines(text: str, width: int, most: int = 2, indent: str = "") -> list[str]:
    """Return at most ``most`` lines, cut between words where possible."""
    line, room = logs.printable(text.replace("\n", "⏎")), max(8, width)
    more: Any = {"max_lines": most, "placeholder": " …", "subsequent_indent": indent}
    return textwrap.wrap(line, room, **more) or [""]


def panel(s: RunSnapshot, width: int = 80, height: int = 24) -> RenderableType:
    """Render the live view of a snapshot for a terminal of this size."""
    room, inner = height - 2, width - LABEL_WIDTH - FRAME_WIDTH
    top, below = _progress(s, inner, lines=3 if height >= TALL else 1), _processes(s, inner)
    samples = _samples(s, inner, room - len(top) - len(below))
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(style="dim", justify="right", width=LABEL_WIDTH)
    rows.add_column(no_wrap=True, width=inner, overflow="ellipsis")
    for label, text in [*top, *samples, *below][:room]:
        rows.add_row(label, text)
    title = wrap_lines(f"{s.name} · {s.title}", width - 10, most=1)[0]
    return Panel(
        rows,
        title=f"[bold]{escape(title)}[/]",
        subtitle=clock(s.elapsed_s),
        border_style="blue",
        width=width,
    )


def _progress(s: RunSnapshot, inner: int, lines: int) -> list[Row]:
    count, after = f"{s.step} of {s.steps}", f"  {time_left(s)}"
    length = max(4, inner - len(count) - len(after) - 1)
    done = length * s.step // max(1, s.steps)
    bar = Text.assemble(
        f"{count} ", ("━" * done, "blue"), ("─" * (length - done), "dim"), after
    )
    rows = _label_rows("task", wrap_lines(s.task, inner), "bold") if s.task else []
    words = wrap_lines(f"{s.state}: {s.line}", inner)
    rows += _label_rows("run", words, STATE_STYLES.get(s.state, "bold"))
    rows += [("step", bar), *[("", "")] * (lines > 1)]
    for name, values in (("reward", s.rewards), ("exact", s.exacts)):
        if name == "exact" and not values:
            continue  # few environments have this measure
        curve = sparkline(values, inner - 6, lines=lines, steps=s.steps).split("\n")
        number = format_value(values[-1] if values else None)
        cells = zip([number, *[""] * lines], curve)
        rows += _label_rows(name, [Text.assemble(f"{n:6}", (c, "green")) for n, c in cells])
        if name == "reward" and s.reward_words:
            rows += _label_rows("", wrap_lines(s.reward_words, inner), "dim")
    if s.heldout:
        points = [f"{exact:.2f} at step {step}" for step, exact in s.heldout]
        shown = points if len(points) < 4 else [points[0], "…", *points[-2:]]
        rows.append(("held out", " → ".join(shown)))
    return [*rows, ("", "")]


def _label_rows(label: str, lines: Sequence[str | Text], style: str = "") -> list[Row]:
    texts = [Text(line, style) if isinstance(line, str) else line for line in lines]
    return [(label if number == 0 else "", text) for number, text in enumerate(texts)]


def _samples(s: RunSnapshot, inner: int, room: int) -> list[Row]:
    """Show held-out problems with their first and latest answer, as many as fit.

    Without them the newest answers of the environments, each in a line.
    """
    if not s.answers:
        return _newest_answers(s, inner, room)
    widths = (inner // 4, (inner - inner // 4) // 2 - 1, (inner - inner // 4) // 2 - 1)

    def columns(texts: Iterable[str], styles: Iterable[str]) -> Text:
        cells = zip(texts, styles, widths)
        parts = (
            (set_cell_size(text, width - 2) + "  ", style) for text, style, width in cells
        )
        return Text.assemble(*parts)

    first, newest = s.answers[0][0].step, s.answers[0][-1].step
    heads = (
        "problem",
        f"before, step {first}",
        f"now, step {newest}" if newest > first else "now",
    )
    rows: list[Row] = [("samples", columns(heads, ("dim", "dim", "dim")))]
    for before, *later in s.answers:
        answers = (before, later[-1] if later else None)
        texts = [f"{a.reward:.2f}  {a.completion}" if a else "–" for a in answers]
        cells = [wrap_lines(before.prompt, widths[0] - 2)]
        cells += [wrap_lines(text, widths[1] - 2, indent=" " * 6) for text in texts]
        styles = ("", *("green" if a and a.right else "yellow" for a in answers))
        rows += [("", columns(line, styles)) for line in zip_longest(*cells, fillvalue="")]
        if len(rows) >= room - 1:
            break
    return [*rows[: max(3, room - 1)], ("", "")]


def _newest_answers(s: RunSnapshot, inner: int, room: int) -> list[Row]:
    lines = [
        wrap_lines(f"{format_value(reward, '.2f')}  {answer}", inner, most=1)[0]
        for reward, answer in s.newest
    ]
    rows = _label_rows("answers", lines[: max(0, room - 1)])
    return [*rows, ("", "")] if rows else []


def _processes(s: RunSnapshot, inner: int) -> list[Row]:
    """Show what each process does, then the figures; a low terminal cuts the last figures."""
    shown = [line for text in s.processes for line in wrap_lines(text, inner, most=4)]
    warned = [line for text in s.warnings for line in wrap_lines(text, inner)]
    figures = {
        "groups": s.dropped,
        "measures": s.measures,
        "speed": f"{format_value(s.generate_tokens_per_s, '.0f')} tokens/s generated, "
        f"{format_value(s.train_tokens_per_s, '.0f')} trained",
        "staleness": f"{format_value(s.staleness_mean, '.1f')} versions, "
        f"at most {format_value(s.staleness_max, '.0f')}",
        "mismatch": f"{format_value(s.mismatch, '.1e')} nats per token between server and trainer",
        "weights": f"version {format_value(s.server_version, 'd')} at the server, "
        f"{format_value(s.trainer_version, 'd')} at the trainer",
    }
    rows = _label_rows("processes", shown or ["no process has reported yet"])
    rows += _label_rows("warning", warned, "yellow")
    return [*rows, ("", ""), *(row for row in figures.items() if row[1])]


def step_line(s: RunSnapshot) -> str:
    """Format a step as a line, for a log file or a pipe."""
    reward = s.rewards[-1] if s.rewards else None
    parts = (
        f"step {s.step}/{s.steps}  reward {format_value(reward)}",
        s.measures,
        f"{format_value(s.generate_tokens_per_s, '.0f')} tok/s generated  "
        f"{format_value(s.train_tokens_per_s, '.0f')} tok/s trained  "
        f"staleness {format_value(s.staleness_max, '.0f')}  mismatch {format_value(s.mismatch, '.1e')}  "
        f"version {format_value(s.server_version, 'd')}",
        s.dropped,
        f"{clock(s.elapsed_s)}  {time_left(s)}".rstrip(),
    )
    return "  ".join(filter(None, parts))


def print_plain(console: Console, text: str) -> None:
    """Print ``text`` as it is, but for control characters."""
    shown = logs.printable(text, logs.LINES)
    console.print(shown, markup=False, highlight=False, soft_wrap=True)


class View(ABC):
    """Output of the launcher."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @abstractmethod
    def show(self, snapshot: RunSnapshot) -> None: ...

    @abstractmethod
    def waiting(self, line: str) -> None: ...

    def print_line(self, line: str) -> None:
        print_plain(self._console, line)

    def close(self) -> None:
        """Do nothing."""


class LiveView(View):
    """A panel that is redrawn in place; printed lines scroll above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def show(self, snapshot: RunSnapshot) -> None:
        size = self._console.size  # current size of the terminal
        self._live.update(panel(snapshot, size.width, size.height - 1))

    def waiting(self, line: str) -> None:
        self._live.update(Text(line, style="dim"))

    def close(self) -> None:
        self._live.stop()


class PlainView(View):
    """Lines only; a wait for servers is printed every ten seconds, a wait for a step every 30."""

    def __init__(self, console: Console, as_logs: bool = False) -> None:
        super().__init__(console)
        self._as_logs = as_logs
        self._step_at = time.monotonic()  # time of the last line on a step
        self._shown_steps = 0
        self._warned = False  # whether a warning was printed, which happens at once
        self._quiet_until = 0.0

    def print_line(self, line: str) -> None:
        if self._as_logs:
            logger.info(line)
        else:
            super().print_line(line)

    def show(self, snapshot: RunSnapshot) -> None:
        s, now = snapshot, time.monotonic()
        if s.step > self._shown_steps:
            self._shown_steps, self._step_at = s.step, now
            self.print_line(step_line(s))
        elif now - self._step_at >= STEP_WAIT_S or (s.warnings and not self._warned):
            self._step_at, self._warned = now, bool(s.warnings)
            told = f"after step {s.step}/{s.steps}; {s.state}: {s.line}"
            shown = (told, s.dropped, *(s.warnings or s.processes))
            self.print_line("; ".join(filter(None, shown)))

    def waiting(self, line: str) -> None:
        self._step_at = time.monotonic()
        if self._step_at >= self._quiet_until:
            self._quiet_until = self._step_at + WAIT_LOG_INTERVAL_S
            self.print_line(line)


def open_view(console: Console, live: bool, as_logs: bool = False) -> View:
    """Open a panel on a terminal, else lines; lines are logs if ``as_logs`` or logs are JSON."""
    as_json = logs.style() == "json"
    if live and console.is_terminal and not as_json:
        return LiveView(console)
    return PlainView(console, as_logs or as_json)
