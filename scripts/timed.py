"""Run a command, and print before it how long it took the last time.

    python scripts/timed.py FILE NAME RULE COMMAND...      "fast tests: 3 min 22 s last time"
    python scripts/timed.py FILE NAME RULE                 print the line only

FILE keeps the seconds of each NAME as JSON. RULE is printed where FILE has none, for example
"about 4 min on 2 cores". A command that fails keeps the earlier time. The exit status is that of
the command.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> int:
    store, name, rule, *command = argv
    known = read(Path(store))
    print(f"{name}: {expected_text(known.get(name), rule)}", flush=True)
    if not command:
        return 0
    begun = time.monotonic()
    status = subprocess.run(command, check=False).returncode
    if status == 0:
        known = {**read(Path(store)), name: round(time.monotonic() - begun, 1)}
        Path(store).write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return status


def read(store: Path) -> dict[str, float]:
    """Seconds by name; empty without a readable file."""
    try:
        known = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def expected_text(seconds: float | None, rule: str) -> str:
    """``202.4`` -> ``3 min 22 s last time``; ``rule`` without a known time."""
    if seconds is None:
        return rule
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s last time" if minutes else f"{rest} s last time"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
