"""atropos why: how a run is, and the causes why it does not go on, with evidence and remedy.

Exit status with --exit-code: 0 healthy or done, 1 waiting as it should or stopped, 2 stuck or
failed, 3 not reachable.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.run_status.ended import ended_verdict
from atroposlib.run_status.polling import (
    DEFAULT_URL,
    URL_VARIABLE,
    RunReport,
    address_in,
    poll,
)
from atroposlib.run_status.verdict import EXIT_STATUS, document_of
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import API_TOKEN, CommandParser

APART_S = 2.0  # between two polls: lack of progress shows in the second


def parser_of(name: str, about: str | None) -> CommandParser:
    """A parser with the address of the API."""
    variables = (f"{URL_VARIABLE}: default of --api-url", API_TOKEN)
    parser = CommandParser(prog=name, description=about, variables=variables)
    default = os.environ.get(URL_VARIABLE, DEFAULT_URL)
    parser.add_argument("--api-url", default=default, help="rollout API (%(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the verdict; the status is 0 without --exit-code."""
    parser = parser_of("atropos why", __doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per poll")
    parser.add_argument("run", nargs="?", type=Path, help="folder of a run, in place of a URL")
    parser.add_argument("--watch", action="store_true", help="again at every change, until ^C")
    parser.add_argument("--exit-code", action="store_true", help="exit status as above")
    options = parser.parse_args(argv)
    shown: Any = None
    while True:
        verdict = verdict_on(options.run, options.api_url, shown is not None)
        keys = verdict["state"], [finding["key"] for finding in verdict["findings"]]
        if keys != shown:
            print(page(verdict, as_json=options.json), flush=True)
        shown = keys
        if not options.watch or verdict["state"] in ("done", "stopped", "failed"):
            return EXIT_STATUS[verdict["state"]] if options.exit_code else 0
        time.sleep(APART_S)


def verdict_on(folder: Path | None, url: str, again: bool = False) -> Mapping[str, Any]:
    """The verdict on the run of ``folder``, or at ``url``; ``again``: polled lately.

    Raises ConfigError: the folder does not exist.
    """
    if folder is None:
        return poll_twice(url, again).verdict
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder}: give that of a run, or --api-url URL")
    address = address_in(folder)
    if address is not None:
        report = poll_twice(address, again)
        if report.verdict["state"] != "unreachable" or report.refused:
            return report.verdict
    return document_of(ended_verdict(folder))


def poll_twice(url: str, again: bool = False) -> RunReport:
    """The second of two polls, so that progress is compared; the first of an absent API."""
    report = poll(url)
    if again or report.status is None:
        return report
    time.sleep(APART_S)
    return poll(url)


def page(verdict: Mapping[str, Any], *, as_json: bool = False) -> str:
    """The verdict as text, or as the JSON of GET /explore/why."""
    if as_json:
        return json.dumps(verdict)
    findings = verdict["findings"]
    lines = []
    if verdict["state"] in ("healthy", "done", "stopped", "failed"):
        lines.append(f"{verdict['state']}: {verdict['line']}")
        if verdict["remedy"]:
            lines.append(f"    {verdict['remedy']}")
    for finding in findings:
        if finding["key"] in ("complete", "ended"):
            lines += [f"    {text}" for text in finding["evidence"]]
            continue
        lines.append(f"{finding['severity']}: {finding['cause']}")
        lines += [f"    {text}" for text in finding["evidence"]]
        lines.append(f"    fix: {finding['remedy']}")
    return "\n".join(map(logs.printable, lines))
