"""atropos why: how a run is, and the causes why it does not go on, with evidence and remedy.

Exit status with --exit-code: 0 healthy or done, 1 waiting as it should or stopped, 2 stuck or
failed, 3 not reachable.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
from atroposlib.run_status.verdict import EXIT_STATUS
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import API_TOKEN, CommandParser

ENDED = ("done", "stopped", "failed")  # states in which there is nothing to wait for
APART_S = 2.0  # between two polls: lack of progress shows in the second


def parser_of(name: str, about: str | None) -> CommandParser:
    """A parser with the address of the API."""
    variables = (f"{URL_VARIABLE}: default of --api-url", API_TOKEN)
    parser = CommandParser(prog=name, description=about, variables=variables)
    default = os.environ.get(URL_VARIABLE, DEFAULT_URL)
    parser.add_argument("--api-url", default=default, help="rollout API (%(default)s)")
    return parser


def add_run(parser: CommandParser, name: str = "run") -> None:
    """Add the argument ``name``, the folder of a run."""
    bounds: dict[str, Any] = {} if name.startswith("-") else {"nargs": "?"}
    parser.add_argument(name, type=Path, help="folder of a run, in place of a URL", **bounds)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the verdict; the status is 0 without --exit-code."""
    parser = parser_of("atropos why", __doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per poll")
    add_run(parser)
    parser.add_argument("--watch", action="store_true", help="again at every change, until ^C")
    parser.add_argument("--exit-code", action="store_true", help="exit status as above")
    options = parser.parse_args(argv)
    shown: Any = None
    while True:
        verdict = report_on(options.run, options.api_url, shown is not None).verdict
        keys = verdict["state"], [finding["key"] for finding in verdict["findings"]]
        if keys != shown:
            print(page(verdict, as_json=options.json), flush=True)
        shown = keys
        if not options.watch or verdict["state"] in ENDED:
            return EXIT_STATUS[verdict["state"]] if options.exit_code else 0
        time.sleep(APART_S)


def url_of(folder: Path | None, url: str) -> str:
    """The address of the API of the run in ``folder``; without a folder ``url``.

    Raises ConfigError: the folder names no API.
    """
    if folder is None:
        return url
    address = address_in(folder)
    if address is None:
        raise ConfigError(
            f"{folder} names no rollout API: give that of a run, or --api-url URL"
        )
    return address


def report_on(folder: Path | None, url: str, again: bool = False) -> RunReport:
    """The report on the run of ``folder``, or of the API at ``url``; ``again``: polled lately.

    The verdict on a run whose processes are gone is that of its files.

    Raises ConfigError: the folder does not exist.
    """
    if folder is None:
        return poll_twice(url, again)
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder}: give that of a run, or --api-url URL")
    address = address_in(folder)
    if address is not None:
        report = poll_twice(address, again)
        if report.verdict["state"] != "unreachable" or report.refused:
            return report
    verdict = asdict(ended_verdict(folder))
    return RunReport(address or str(folder), time.time(), None, verdict)


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
