"""atropos api status, and atropos api dead: the state of a run, and batches set aside."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from atroposlib.errors import AtroposError, RolloutApiUnavailable
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import API_TOKEN, CommandParser
from atroposlib.wire import RunStatus

if TYPE_CHECKING:
    from atroposlib.client import RolloutClient

URL_VARIABLE = "ATROPOS_API_URL"
UNREACHABLE = 3  # exit status


def main(argv: Sequence[str] | None = None) -> int:
    """Print one look at /status; 3 if the API does not answer, 1 if it refuses."""
    parser = _parser("atropos api status", __doc__ or "")
    parser.add_argument("--json", action="store_true", help="the reply of GET /status")
    options = parser.parse_args(argv)

    def show(client: RolloutClient) -> str:
        status = client.status()
        if options.json:
            return status.model_dump_json(indent=2)
        return page(options.api_url, status)

    return _asked(options.api_url, show)


def dead(argv: Sequence[str] | None = None) -> int:
    """List batches that were set aside, deliver one again, or free it."""
    parser = _parser("atropos api dead", dead.__doc__ or "")
    parser.add_argument("verb", nargs="?", choices=("list", "revive", "drop"), default="list")
    parser.add_argument("no", nargs="?", type=int, help="a batch; 0: all damaged groups")
    options = parser.parse_args(argv)
    if (options.verb == "list") != (options.no is None):
        parser.error("revive NO, drop NO, or list")

    def act(client: RolloutClient) -> str:
        if options.verb != "list":
            found = client.settle_dead(options.no, options.verb)
            return f"batch {options.no}: {options.verb if found else 'not dead'}"
        lines = [
            "batch {no}: {groups} groups, {sequences} sequences, {n_bytes} bytes".format(**one)
            for one in client.dead_batches()
        ]
        return "\n".join(lines or ["no batch is dead"])

    return _asked(options.api_url, act)


def _parser(name: str, about: str) -> CommandParser:
    variables = (f"{URL_VARIABLE}: default of --api-url", API_TOKEN)
    parser = CommandParser(prog=name, description=about, variables=variables)
    default = os.environ.get(URL_VARIABLE, "http://127.0.0.1:8000")
    parser.add_argument("--api-url", default=default, help="rollout API (%(default)s)")
    return parser


def _asked(url: str, ask: Callable[[RolloutClient], str]) -> int:
    """Print the answer; 3 if the API does not answer, 1 if it refuses."""
    from atroposlib.client import RolloutClient

    try:
        with closing(RolloutClient(url, timeout_s=5, give_up_after_s=0)) as client:
            text = ask(client)
    except AtroposError as error:
        print(f"error: {error}", file=sys.stderr)
        if not isinstance(error, RolloutApiUnavailable):
            return 1
        print("fix: `atropos api serve` starts one, --api-url names one", file=sys.stderr)
        return UNREACHABLE
    print(text)
    return 0


def page(url: str, status: RunStatus) -> str:
    """The status in words, one line per process."""
    version = f"policy version {status.policy_version}"
    lines = [
        f"{url}: {status.state}, step {status.current_step}, {version}",
        f"{status.queued_sequences} sequences queued, {status.leased_sequences} with the "
        f"trainer; {status.batches_acked} batches acked, {status.batches_open} open",
    ]
    if status.blocked_reason:
        lines.append(f"waits: {status.blocked_reason}")
    lines += [f"stalled: {line}" for line in status.stalled]
    lines += [f"warning: {warning}" for warning in status.warnings]
    for one in status.participants:
        waiting = f", waits for {one.waiting_on}" if one.waiting_on else ""
        lines.append(f"{one.role:<9} {one.name}: {one.phase}{waiting} ({one.age_s:.0f} s ago)")
    return "\n".join(map(logs.printable, lines))
