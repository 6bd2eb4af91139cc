"""atropos why: the causes why a run does not go on, each with evidence and remedy.

Exit status with --exit-code: 0 moving, 1 waiting as it should, 2 stuck, 3 not reachable.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atroposlib.doctor.diagnosis import answer, diagnose, exit_status, moving
from atroposlib.doctor.evidence import Evidence, Finding, Severity
from atroposlib.doctor.looks import DEFAULT_URL, URL_VARIABLE, address_in, look
from atroposlib.errors import ConfigError
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import API_TOKEN, CommandParser

APART_S = 2.0  # between the looks
_ERROR = re.compile(r"error|Traceback|Exception|killed", re.IGNORECASE)
TAIL_BYTES = 20_000  # read from the end of each log


def parser_of(name: str, about: str | None) -> CommandParser:
    """A parser with the address of the API."""
    variables = (f"{URL_VARIABLE}: default of --api-url", API_TOKEN)
    parser = CommandParser(prog=name, description=about, variables=variables)
    default = os.environ.get(URL_VARIABLE, DEFAULT_URL)
    parser.add_argument("--api-url", default=default, help="rollout API (%(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the findings; the status is 0 without --exit-code."""
    parser = parser_of("atropos why", __doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per look")
    parser.add_argument("run", nargs="?", type=Path, help="folder of a run, in place of a URL")
    parser.add_argument("--watch", action="store_true", help="again at every change, until ^C")
    parser.add_argument("--exit-code", action="store_true", help="exit status as above")
    options = parser.parse_args(argv)
    url: str = options.api_url
    if options.run is not None and not options.run.is_dir():
        raise ConfigError(f"no folder {options.run}: give that of a run, or --api-url URL")
    if options.run is not None:
        url = address_in(options.run) or ""
    before = look(url) if url else None
    if options.run is not None and (before is None or before.status is None):
        return _explain_end(options.run, as_json=options.json, as_status=options.exit_code)
    shown: Any = None
    while before is not None:
        if before.status is not None or shown is not None:
            time.sleep(APART_S)
        now = look(url) if before.status is not None or shown is not None else before
        evidence = Evidence(url, before, now)
        findings = diagnose(evidence)
        keys = [finding.key for finding in findings]
        if keys != shown:
            print(page(findings, moving(evidence), as_json=options.json), flush=True)
        shown, before = keys, now
        if not options.watch:
            return exit_status(findings) if options.exit_code else 0
    return 0


def page(findings: Sequence[Finding], going: str | None, *, as_json: bool = False) -> str:
    """The findings as text, or as the JSON of GET /explore/why."""
    if as_json:
        return json.dumps(answer(findings, going))
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity}: {finding.cause}")
        lines += [f"    {text}" for text in finding.evidence]
        lines.append(f"    fix: {finding.remedy}")
    if not findings:
        lines.append(f"no finding: {going}")
    return "\n".join(map(logs.printable, lines))


def _explain_end(folder: Path, *, as_json: bool, as_status: bool) -> int:
    """Print what the files of a run show after its end."""
    from atroposlib.trackers.jsonl import read_steps

    path = folder / "metrics.jsonl"
    steps = read_steps(path) if path.is_file() else []
    evidence = [f"{path}: {len(steps)} steps"]
    names = ("step", "version", "reward_mean", "logprob_mismatch_mean", "staleness_mean")
    for last in steps[-1:]:
        known = (name for name in names if last.get(name) is not None)
        evidence.append(", ".join(f"{name} {last[name]:.6g}" for name in known))
    errors = [line for log in sorted(folder.glob("logs/*.log")) if (line := _last_error(log))]
    cause = "its API does not answer: " + ("the run has ended" if steps else "has it begun?")
    fix = "see the first error in logs/" if errors else "report.html and the model are in it"
    severity: Severity = "stuck" if errors else "waiting"
    shown = (*evidence, *errors)
    finding = Finding(0, "ended", severity, cause, shown, fix, time.time())
    print(page([finding], None, as_json=as_json))
    return exit_status([finding]) if as_status else 0


def _last_error(log: Path) -> str:
    """The last line of a log that reports an error; empty if there is none."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = stream.read().decode("utf-8", "replace").splitlines()
    matching = [line for line in lines if _ERROR.search(line)]
    return f"{log.name}: {logs.redact(matching[-1])[:300]}" if matching else ""
