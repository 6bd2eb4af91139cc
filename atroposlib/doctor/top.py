"""atropos top: flow, processes, open batches and the first finding of a run, redrawn in place.

Without a terminal: a line per second.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from atroposlib.doctor.diagnosis import answer, diagnose, exit_status, moving
from atroposlib.doctor.evidence import (
    SILENT_S,
    Evidence,
    Finding,
    Process,
    label,
    number,
    silence_s,
)
from atroposlib.doctor.looks import look
from atroposlib.doctor.why import page as findings_page
from atroposlib.doctor.why import parser_of
from atroposlib.utils.command import logs

REDRAW_S, LINE_S = 0.5, 1.0
WINDOW = 5  # looks between the two that are compared
COLORS = {"stuck": "bold red", "waiting": "yellow", "warning": "magenta"}
Line = tuple[str, str]  # text, style


def main(argv: Sequence[str] | None = None) -> int:
    """Show the run until ^C, or once; 3 if the API does not answer."""
    parser = parser_of("atropos top", __doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per look")
    parser.add_argument("--once", action="store_true", help="once, then end")
    options = parser.parse_args(argv)
    plain = options.once or options.json or not sys.stdout.isatty()
    console, looks = Console(), [look(options.api_url)]
    with Live(console=console, auto_refresh=False) as live:
        while True:
            time.sleep(LINE_S if plain else REDRAW_S)
            looks = [*looks[-WINDOW:], look(options.api_url)]
            e = Evidence(options.api_url, looks[0], looks[-1])
            findings = diagnose(e)
            if options.json:
                print(document(e, findings), flush=True)
            elif plain:
                shown = lines(e, findings) if options.once else [(summary(e, findings), "")]
                print("\n".join(logs.printable(text) for text, _ in shown), flush=True)
            else:
                shown = lines(e, findings, console.height - 1)
                page = Text("\n").join(fit_line(line, console.width) for line in shown)
                live.update(page, refresh=True)
            if options.once:
                return 3 if exit_status(findings) == 3 else 0


def once(argv: Sequence[str] | None = None) -> int:
    """Run ``atropos api status``, which is ``atropos top --once``."""
    return main([*(sys.argv[1:] if argv is None else argv), "--once"])


def document(e: Evidence, found: Sequence[Finding]) -> str:
    """Look as JSON: status, findings, moving."""
    return json.dumps({"at": e.now.at, "status": e.now.status, **answer(found, moving(e))})


def fit_line(line: Line, width: int) -> Text:
    """A line that fits the width, control characters as escapes."""
    text = Text(logs.printable(line[0]), line[1], no_wrap=True)
    text.truncate(width, overflow="ellipsis")
    return text


def summary(e: Evidence, findings: Sequence[Finding]) -> str:
    """The run in a line."""
    what = f"{findings[0].severity}: {findings[0].cause}" if findings else f"{moving(e)}"
    return f"step {e.count('current_step'):.0f}  {flow(e)}  {what}"


def flow(e: Evidence) -> str:
    """Environments -> queue -> batch -> trainer -> weights -> servers, with rates."""
    rate = e.grown("groups_in_total") / e.seconds
    servers = [process for process in e.processes if process["role"] == "inference"]
    queue, batch = (f"{e.count(f'{part}_sequences'):.0f}" for part in ("queued", "leased"))
    return (
        f"{len(e.fresh('env'))} env > {rate:.1f} groups/s > queue {queue} > batch {batch} > "
        f"{e.phase or 'no trainer'} > v{e.count('policy_version'):.0f} > {len(servers)} servers"
    )


def lines(e: Evidence, findings: Sequence[Finding], height: int = 10_000) -> list[Line]:
    """The whole table; processes are cut where the terminal is low."""
    state = e.status.get("state", "no answer")
    title = f"{e.url}  {state}  step {e.count('current_step'):.0f}"
    head: list[Line] = [(title, "bold"), (flow(e), ""), ("", "")]
    here = [process for process in e.processes if "ended" not in process["details"]]
    rows = [
        _row(e, process) for process in sorted(here, key=lambda process: str(process["role"]))
    ]
    processes = [("role      name              age  phase, wait, figures", "dim"), *rows]
    batches = [(f"no batch yet: {e.reason}", "yellow")] if e.reason else []
    for batch in (e.status.get("open_batches") or ())[:3]:
        delivery = f"{batch['sequences']} sequences, delivery {batch['deliveries']}"
        batches.append(
            (f"batch {batch['no']}: {delivery}, lease {batch['lease_s']:.0f} s", "")
        )
    first = findings_page(findings[:1], moving(e)).split("\n")
    why = [(text, COLORS[findings[0].severity] if findings else "green") for text in first[:5]]
    room = height - len(head) - len(batches) - len(why) - 1
    if len(processes) > room:
        more = (f"and {len(processes) - room + 1} more", "dim")
        processes = [*processes[: max(1, room - 1)], more]
    return [*head, *processes, *batches, ("", ""), *why]


def _row(e: Evidence, process: Process) -> Line:
    """A process: its phase and figures; a silent process greyed, without the wait it reported."""
    head = f"{process['role']:<9} {label(process)[:17]:<17} {process['age_s']:>3.0f}s  "
    if (silent_s := silence_s(process)) > SILENT_S:
        return f"{head}silent since {silent_s:.0f} s ({process['phase']})", "bright_black"
    parts = [str(process["phase"])]
    if number(process, "phase_s"):
        parts[0] += f" {number(process, 'phase_s'):.0f} s"
    if process.get("waiting_on"):
        parts.append(f"waits for {process['waiting_on']}")
    for name, form in _FIGURES.get(process["role"], {}).items():
        if isinstance(value := process["details"].get(name), (int, float)):
            parts.append(form.format(value))
    shares = [s for s in e.status.get("shares") or () if s["name"].startswith(label(process))]
    if process["role"] == "env" and shares:
        parts.append(f"share {shares[0]['realised']:.0%} of {shares[0]['asked']:.0%}")
    return head + ", ".join(parts), "yellow" if process.get("waiting_on") else ""


_FIGURES = {
    "env": {
        **{"reward": "reward {:.2f}", "groups_sent": "{:.0f} sent"},
        **{"groups_dropped": "{:.0f} dropped", "rollouts_failed": "{:.0f} failed"},
    },
    "inference": {
        **{"version": "v{:.0f}", "running": "{:.0f} running"},
        **{"tokens_per_s": "{:.0f} tokens/s"},
    },
    "trainer": {"step": "step {:.0f}", "mismatch": "mismatch {:.1g}"},
}
