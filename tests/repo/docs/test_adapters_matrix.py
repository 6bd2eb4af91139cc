"""The table of tested versions in docs/adapters.md, and the results that it is made of."""

from __future__ import annotations

import json
from collections import Counter

from tests.adapters.matrix.results import PAGE, RESULTS, merged, page, rows_of


def test_the_table_of_tested_versions_is_that_of_the_kept_results():
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, RESULTS.read_text(encoding="utf-8").splitlines()) == text


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
