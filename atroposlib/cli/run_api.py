"""run-api: start the rollout API.

run-api                                 127.0.0.1:8000, kept in ./atropos-data/8000
run-api --store memory                  nothing outlives the process
run-api --data-dir runs/a --port 8001   resume what was in runs/a, if anything
run-api --tokens t --new-token admin    add a token to the file t and print it, once
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from atroposlib.cli.api_options import parse_args
from atroposlib.errors import AtroposError, ConfigError
from atroposlib.utils.command import logs

_DAY_S = 86_400


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal. Exit status 1 after an error line if it cannot start."""
    try:
        options = parse_args(argv)
        logs.configure("run-api", options.log_format, options.log_level)
        if options.new_token is not None:
            _new_token(options)
            return 0
        from atroposlib.cli.serve_api import serve  # --help should not wait for it

        serve(options)
        return 0
    except (AtroposError, OSError) as error:
        logs.report("run-api", error)
        return 1


def _new_token(options: argparse.Namespace) -> None:
    from atroposlib.api.guards.tokens import add_token

    if options.tokens is None:
        raise ConfigError("--new-token needs --tokens FILE to add the token to")
    days = options.token_days
    ends = None if days is None else int(time.time() + days * _DAY_S)
    print(add_token(Path(options.tokens), options.new_token, ends))
    print(
        f"run-api: the digest is in {options.tokens}; the token is shown this once. "
        "Clients take it from ATROPOS_API_TOKEN.",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
