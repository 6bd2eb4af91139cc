"""Totals of the rows of an index, also of batches whose rows it has freed."""

from __future__ import annotations

from atroposlib.api.archive.index import Index
from atroposlib.api.archive.row_totals import has_freed_rows, row_totals
from atroposlib.api.decisions.balance import RowTotal

ROW = "INSERT INTO rollout (gid, row, env, n_trained, state, batch_no, step) VALUES {}"


def test_rows_of_a_freed_group_count_by_the_sum_of_their_batch():
    index = Index(None)
    index.change(
        ROW.format(
            "(1, 0, 'a', 5, 'committed', 1, 7), (2, 0, 'a', 6, 'committed', 1, 7), "
            "(-1, 0, 'a', 9, 'dropped', NULL, NULL), (3, 0, 'a', 4, 'pending', NULL, NULL)"
        )
    )
    index.change("INSERT INTO batch (no, step, state) VALUES (1, 7, 'committed')")
    index.change("INSERT INTO rollup (batch_no, env, n, trained) VALUES (1, 'a', 2, 11)")
    assert not has_freed_rows(index)
    index.change("DELETE FROM rollout WHERE gid = 1")
    assert has_freed_rows(index)
    assert sorted(row_totals(index), key=lambda row: row.tokens) == [
        RowTotal("a", None, None, "pending", None, 4, 1),
        RowTotal("a", None, 7, "committed", None, 5, 1),
        RowTotal("a", None, 7, "committed", None, 6, 1),
    ]
    index.close()
