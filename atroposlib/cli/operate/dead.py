"""atropos api dead: batches that were set aside."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing

from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError, RolloutApiUnavailable
from atroposlib.run_status.why import add_run, parser_of, url_of

UNREACHABLE = 3  # exit status


def main(argv: Sequence[str] | None = None) -> int:
    """List batches that were set aside, deliver a batch again, or free it."""
    parser = parser_of("atropos api dead", main.__doc__)
    parser.add_argument("verb", nargs="?", choices=("list", "revive", "drop"), default="list")
    parser.add_argument("no", nargs="?", type=int, help="a batch; 0: all damaged groups")
    add_run(parser, "--run")
    options = parser.parse_args(argv)
    if (options.verb == "list") != (options.no is None):
        parser.error("revive NO, drop NO, or list")
    url = url_of(options.run, options.api_url)
    try:
        with closing(RolloutClient(url, timeout_s=5, give_up_after_s=0)) as client:
            if options.verb != "list":
                settled = client.settle_dead(options.no, options.verb)
                print(f"batch {options.no}: {options.verb if settled else 'not dead'}")
                return 0
            lines = [
                "batch {no}: {groups} groups, {sequences} sequences, {n_bytes} bytes".format(
                    **batch
                )
                for batch in client.dead_batches()
            ]
    except AtroposError as error:
        print(f"error: {error}", file=sys.stderr)
        if not isinstance(error, RolloutApiUnavailable):
            return 1
        print("fix: `atropos api serve` starts one, --api-url names one", file=sys.stderr)
        return UNREACHABLE
    print("\n".join(lines or ["no batch is dead"]))
    return 0
