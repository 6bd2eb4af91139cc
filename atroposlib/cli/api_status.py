"""atropos api status: the state of a run, its processes, and what it waits for."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import closing

from atroposlib.errors import AtroposError, RolloutApiUnavailable
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import API_TOKEN, CommandParser
from atroposlib.wire import RunStatus

URL_VARIABLE = "ATROPOS_API_URL"
UNREACHABLE = 3  # exit status


def main(argv: Sequence[str] | None = None) -> int:
    """Print one look at /status; 3 if the API does not answer, 1 if it refuses."""
    variables = (f"{URL_VARIABLE}: default of --api-url", API_TOKEN)
    parser = CommandParser(prog="atropos api status", description=__doc__, variables=variables)
    default = os.environ.get(URL_VARIABLE, "http://127.0.0.1:8000")
    parser.add_argument("--api-url", default=default, help="rollout API (%(default)s)")
    parser.add_argument("--json", action="store_true", help="the reply of GET /status")
    options = parser.parse_args(argv)
    from atroposlib.client import RolloutClient

    try:
        with closing(RolloutClient(options.api_url, timeout_s=5, give_up_after_s=0)) as client:
            status = client.status()
    except AtroposError as error:
        print(f"error: {error}", file=sys.stderr)
        if not isinstance(error, RolloutApiUnavailable):
            return 1
        print("fix: `atropos api serve` starts one, --api-url names one", file=sys.stderr)
        return UNREACHABLE
    print(status.model_dump_json(indent=2) if options.json else page(options.api_url, status))
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
    for one in status.participants:
        waiting = f", waits for {one.waiting_on}" if one.waiting_on else ""
        lines.append(f"{one.role:<9} {one.name}: {one.phase}{waiting} ({one.age_s:.0f} s ago)")
    return "\n".join(map(logs.printable, lines))
