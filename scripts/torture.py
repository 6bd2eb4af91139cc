"""Run the torture campaigns, a line of figures each: `make torture`.

    python scripts/torture.py                        all of them, long
    python scripts/torture.py --quick                all of them, as `make test` does
    python scripts/torture.py kills=50 mutants       these, and this many kills
    python scripts/torture.py --items power          lines for docs/reliability.md

Exit status 1: a promise was broken; the line names it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    sys.path.insert(0, str(ROOT))
    from tests.torture.campaigns import CAMPAIGNS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME[=SIZE]", help=", ".join(CAMPAIGNS))
    parser.add_argument("--quick", action="store_true", help="the sizes of `make test`")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn at random")
    parser.add_argument("--items", action="store_true", help="items of a Markdown list")
    options = parser.parse_args(argv)
    wanted = dict(word.partition("=")[::2] for word in options.names or CAMPAIGNS)
    if unknown := wanted.keys() - CAMPAIGNS.keys():
        parser.error(f"no campaign is called {', '.join(sorted(unknown))}")
    broken = 0
    for name, size in wanted.items():
        campaign = CAMPAIGNS[name]
        n = int(size) if size else campaign.quick if options.quick else campaign.long
        begun = time.monotonic()
        try:
            line = campaign.run(n, options.seed).line(name)
        except AssertionError as error:
            broken += 1
            line = f"{name}: BROKEN: {error}"
        seconds = time.monotonic() - begun
        if options.items:
            day = datetime.now(timezone.utc).date()
            line = f"* {day}, {n:,} {campaign.unit}, {seconds:.0f} s: {line}"
        else:
            line += f" ({seconds:.0f} s)"
        print(line, flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
