"""Table of docs/adapters.md: which adapter was tested with which version, and when.

    python scripts/matrix.py [--check]

`make matrix` runs the adapters' tests with the real packages, keeps their results in
docs/adapters.jsonl, and then runs this.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from generated import refresh  # noqa: E402

TARGET = ROOT / "docs" / "adapters.md"
RESULTS = ROOT / "docs" / "adapters.jsonl"
BEGIN, END = "<!-- matrix -->\n", "<!-- /matrix -->"
HEAD = ("tests", "package", "Python", "passed", "failed", "skipped", "date")


def table(lines: list[str]) -> str:
    rows = [HEAD, ("---",) * len(HEAD)]
    for line in lines:
        one = json.loads(line)
        package = f"{one['package']} {one['version']}"
        counts = (str(one[name]) for name in HEAD[3:6])
        rows.append((f"`{one['adapter']}`", package, one["python"], *counts, one["date"]))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page(current: str) -> str:
    before, rest = current.split(BEGIN)
    made = table(RESULTS.read_text(encoding="utf-8").splitlines())
    return before + BEGIN + made + rest[rest.index(END) :]


if __name__ == "__main__":
    stale = (
        "docs/adapters.md does not match docs/adapters.jsonl; run: python scripts/matrix.py"
    )
    sys.exit(refresh(__doc__ or "", TARGET, page, stale))
