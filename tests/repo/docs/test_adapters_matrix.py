"""The table of tested versions in docs/adapters.md, and the results that it is made of."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

from tests.adapters.results import merged, rows_of


def test_the_table_of_tested_versions_is_current(root):
    command = [sys.executable, "scripts/matrix.py", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_result_counts_errors_as_failures_under_the_installed_version():
    counts = Counter(passed=3, failed=1, error=2, skipped=4)
    [row] = rows_of({("toy", "pytest"): counts, ("other", "no_such_module"): counts})
    assert (row["adapter"], row["package"]) == ("toy", "pytest")
    assert (row["passed"], row["failed"], row["skipped"]) == (3, 3, 4)


def test_the_latest_result_of_each_version_is_kept():
    def row(version, passed):
        return {"adapter": "a", "package": "p", "version": version, "passed": passed}

    lines = merged([], [row("2.0", 1), row("1.0", 1)])
    kept = merged(lines, [row("2.0", 5)])
    assert [json.loads(line) for line in kept] == [row("1.0", 1), row("2.0", 5)]
