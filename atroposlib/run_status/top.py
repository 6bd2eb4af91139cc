"""atropos top: verdict, flow, processes and open batches of a run, redrawn in place.

Without a terminal: a line per second.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from atroposlib.run_status.evidence import shown_name
from atroposlib.run_status.polling import RunReport
from atroposlib.run_status.verdict import EXIT_STATUS
from atroposlib.run_status.why import ENDED, add_run, page, parser_of, report_on
from atroposlib.utils.command import logs

REDRAW_S, LINE_S = 0.5, 1.0
COLORS = {
    "healthy": "green",
    "done": "green",
    "waiting": "cyan",
    "stuck": "bold red",
    "unreachable": "bold red",
}
PROCESS_COLORS = {"silent": "bright_black", "ended": "bright_black"}
Line = tuple[str, str]  # text, style
Process = Mapping[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Show the run until ^C, or once; 3 if the API does not answer."""
    parser = parser_of("atropos top", __doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per poll")
    parser.add_argument("--once", action="store_true", help="once, then end")
    add_run(parser)
    options = parser.parse_args(argv)
    plain = options.once or options.json or not sys.stdout.isatty()
    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            report = report_on(options.run, options.api_url, again=not options.once)
            if options.json:
                print(json_line(report), flush=True)
            elif plain:
                shown = table_lines(report) if options.once else [(summary_line(report), "")]
                print("\n".join(logs.printable(text) for text, _ in shown), flush=True)
            else:
                shown = table_lines(report, console.height - 1)
                drawn = Text("\n").join(fit_line(line, console.width) for line in shown)
                live.update(drawn, refresh=True)
            has_ended = report.status is None and report.verdict["state"] in ENDED
            if options.once or has_ended:
                return 3 if EXIT_STATUS[report.verdict["state"]] == 3 else 0
            time.sleep(LINE_S if plain else REDRAW_S)


def once(argv: Sequence[str] | None = None) -> int:
    """Run ``atropos api status``, which is ``atropos top --once``."""
    return main([*(sys.argv[1:] if argv is None else argv), "--once"])


def json_line(report: RunReport) -> str:
    """The report as a JSON object: time, status and the keys of the verdict."""
    return json.dumps({"at": report.at, "status": report.status, **report.verdict})


def fit_line(line: Line, width: int) -> Text:
    """A line that fits the width, control characters as escapes."""
    text = Text(logs.printable(line[0]), line[1], no_wrap=True)
    text.truncate(width, overflow="ellipsis")
    return text


def summary_line(report: RunReport) -> str:
    verdict = report.verdict
    words = f"{verdict['state']}: {verdict['line']}"
    return f"{flow_line(report)}  {words}" if report.status is not None else words


def flow_line(report: RunReport) -> str:
    """Environments -> queue -> batch -> trainer -> weights -> servers, with rates."""
    status: Mapping[str, Any] = report.status or {}
    processes = report.verdict["processes"]

    def working(role: str) -> list[Process]:
        alive = ("works", "waits")
        return [p for p in processes if p["role"] == role and p["state"] in alive]

    trainers = [
        p
        for p in status.get("participants", ())
        if p["role"] == "trainer" and working("trainer")
    ]
    phase = (
        min(trainers, key=lambda p: float(p["age_s"]))["phase"] if trainers else "no trainer"
    )
    rate = report.verdict["groups_per_s"]
    return (
        f"{len(working('env'))} env > {rate:.1f} groups/s > queue {status['queued_sequences']} > "
        f"batch {status.get('leased_sequences', 0)} > {phase} > v{status['policy_version']} > "
        f"{len(working('inference'))} servers"
    )


def table_lines(report: RunReport, height: int = 10_000) -> list[Line]:
    """The whole table; processes are cut where the terminal is low."""
    verdict, status = report.verdict, report.status
    color = COLORS.get(verdict["state"], "")
    why = [(text, color) for text in page(verdict).split("\n")]
    if status is None:
        return why
    title = f"{report.url}  {status['state']}  step {status['current_step']}"
    if (useful := (status.get("tokens") or {}).get("useful")) is not None:
        title += f"  useful tokens {useful:.0%}"
    head: list[Line] = [(title, "bold"), (flow_line(report), ""), ("", "")]
    figures = {p["name"]: _figures_of(p, status) for p in status["participants"]}
    rows: list[Line] = [_process_line(process, figures) for process in verdict["processes"]]
    processes: list[Line] = [
        ("role      name              phase, wait, figures", "dim"),
        *rows,
    ]
    batches: list[Line] = []
    for batch in (status.get("open_batches") or ())[:3]:
        delivery = f"{batch['sequences']} sequences, delivery {batch['deliveries']}"
        lease = f"lease {batch['lease_s']:.0f} s"
        batches.append((f"batch {batch['no']}: {delivery}, {lease}", ""))
    room = height - len(head) - len(batches) - len(why[:5]) - 1
    if len(processes) > room:
        more = (f"and {len(processes) - room + 1} more", "dim")
        processes = [*processes[: max(1, room - 1)], more]
    return [*head, *processes, *batches, ("", ""), *why[:5]]


def _process_line(process: Process, figures: Mapping[str, str]) -> Line:
    more = figures.get(process["name"], "") if process["state"] in ("works", "waits") else ""
    label = process["label"].partition("://")[2] or process["label"]  # the port shows, too
    text = f"{process['role']:<9} {label[:17]:<17} {process['text']}{more}"
    return text, PROCESS_COLORS.get(process["state"], "")


def _figures_of(process: Process, status: Mapping[str, Any]) -> str:
    """The figures of a heartbeat, each after a comma."""
    parts = [
        form.format(value)
        for name, form in _FIGURES.get(process["role"], {}).items()
        if isinstance(value := process["details"].get(name), (int, float))
    ]
    # Environments of earlier versions do not report the number that the API gave their name.
    own, shares = shown_name(process), status.get("shares") or ()
    shares = [s for s in shares if own in (s["name"], s["name"].rpartition("_")[0])]
    if process["role"] == "env" and shares:
        parts.append(f"share {shares[0]['realised']:.0%} of {shares[0]['asked']:.0%}")
    return "".join(f", {part}" for part in parts)


_FIGURES = {
    "env": {
        "reward": "reward {:.2f}",
        "groups_sent": "{:.0f} sent",
        "groups_dropped": "{:.0f} dropped",
        "rollouts_failed": "{:.0f} failed",
    },
    "inference": {
        "version": "v{:.0f}",
        "running": "{:.0f} running",
        "tokens_per_s": "{:.0f} tokens/s",
        "held": "held for an evaluation",
    },
    "trainer": {"step": "step {:.0f}", "mismatch": "mismatch {:.1g}"},
}
