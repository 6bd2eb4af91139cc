"""The number of files that run for an everyday operation may fall and not rise.

`python -m tests.repo.paths` lists the files. A change that merges some lowers the bound.
"""

from __future__ import annotations

import pytest

from tests.repo.paths import OPERATIONS, record

# Files today. To be reached by merges: 28 for a claim.
BOUNDS = {
    "post one group": 40,
    "managed row": 21,
    "claim a batch": 41,
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_files_executed_by_an_operation_stay_within_its_bound(operation):
    files = record(operation)
    listed = "\n  ".join([f"{operation}: {len(files)}, bound {BOUNDS[operation]}", *files])
    assert 0 < len(files) <= BOUNDS[operation], listed


def test_every_operation_has_a_bound():
    assert BOUNDS.keys() == OPERATIONS.keys()
