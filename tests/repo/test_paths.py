"""The number of files that run for an everyday operation may fall and not rise.

`python -m tests.repo.paths` lists the files. A change that merges some lowers the bound.
"""

from __future__ import annotations

import pytest

from tests.repo.paths import OPERATIONS, record

# Files today. To be reached by merges: 28 for a claim.
BOUNDS = {
    "post one group": 36,  # three of the payload log, two of the index, two of the arrays of a group
    "managed row": 21,  # special tokens of content, the reply's text, its reasoning
    "claim a batch": 36,  # the record of the run and the arrays of a group have files of their own
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_files_executed_by_an_operation_stay_within_its_bound(operation):
    files = record(operation)
    listed = "\n  ".join([f"{operation}: {len(files)}, bound {BOUNDS[operation]}", *files])
    assert 0 < len(files) <= BOUNDS[operation], listed


def test_every_operation_has_a_bound():
    assert BOUNDS.keys() == OPERATIONS.keys()
