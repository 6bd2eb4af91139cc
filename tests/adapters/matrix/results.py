"""Results of these tests by adapter and package, kept, and shown as a table of docs/adapters.md.

A pytest plugin, active where ATROPOS_ADAPTER_RESULTS is set: `make matrix`.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import pytest

KEPT = "ATROPOS_ADAPTER_RESULTS"
DOCS = Path(__file__).parents[3] / "docs"
RESULTS, PAGE = DOCS / "adapters.jsonl", DOCS / "adapters.md"
BEGIN, END = "<!-- matrix -->\n", "<!-- /matrix -->"
HEAD = ("tests", "package", "Python", "passed", "failed", "skipped", "date")
OUTCOMES = ("passed", "failed", "error", "skipped")
_PACKAGE = pytest.StashKey[dict[str, tuple[str, str]]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[_PACKAGE] = {
        item.nodeid: (item.path.stem.removeprefix("test_"), package)
        for item in session.items
        if (package := _package_of(item))
    }


def _package_of(item: pytest.Item) -> str | None:
    """The import name that the test needs: of its module, or of its parameter ``name``."""
    module = getattr(item, "module", None)
    chosen = getattr(item, "callspec", None)
    several = getattr(module, "PACKAGES", None)
    name = chosen.params.get("name") if chosen else None
    by_name = several if isinstance(several, dict) else {}  # a tuple of another test's
    return by_name.get(name) or getattr(module, "PACKAGE", None)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    found: dict[tuple[str, str], Counter[str]] = {}
    for outcome in OUTCOMES:
        for report in terminalreporter.stats.get(outcome, ()):
            key = config.stash.get(_PACKAGE, {}).get(report.nodeid)
            if key is not None:
                found.setdefault(key, Counter())[outcome] += 1
    if os.environ.get(KEPT):
        lines = merged(RESULTS.read_text(encoding="utf-8").splitlines(), rows_of(found))
        RESULTS.write_text("".join(lines), encoding="utf-8")
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), lines), encoding="utf-8")


def rows_of(found: Mapping[tuple[str, str], Counter[str]]) -> list[dict[str, Any]]:
    """One row for each adapter and package that is installed."""
    rows = []
    for (adapter, module), counts in found.items():
        names = packages_distributions().get(module, [])
        if names and module in sys.modules:
            own = {"adapter": adapter, "package": names[0], "version": version(names[0])}
            when = {"python": platform.python_version(), "date": date.today().isoformat()}
            bad = counts["failed"] + counts["error"]
            ended = {"passed": counts["passed"], "failed": bad, "skipped": counts["skipped"]}
            rows.append(own | when | ended)
    return rows


def merged(lines: Iterable[str], rows: Iterable[dict[str, Any]]) -> list[str]:
    """The lines of the file: the latest result of each adapter with each version, sorted."""
    known = {}
    for row in (*map(json.loads, lines), *rows):
        known[row["adapter"], row["package"], row["version"]] = row
    return [json.dumps(known[key]) + "\n" for key in sorted(known)]


def page(current: str, lines: Iterable[str]) -> str:
    """The page with the table of these results."""
    before, rest = current.split(BEGIN)
    return before + BEGIN + table(lines) + rest[rest.index(END) :]


def table(lines: Iterable[str]) -> str:
    rows = [HEAD, ("---",) * len(HEAD)]
    for line in lines:
        one = json.loads(line)
        package = f"{one['package']} {one['version']}"
        counts = (str(one[name]) for name in HEAD[3:6])
        rows.append((f"`{one['adapter']}`", package, one["python"], *counts, one["date"]))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
