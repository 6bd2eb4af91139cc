"""Rows of the index as totals for the balance of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from atroposlib.api.archive.index import Index
from atroposlib.api.common.run_record import ProcessAccount
from atroposlib.api.decisions.balance import RowTotal, run_account
from atroposlib.wire.explore import RunAccount

_ROWS = (
    "SELECT env, version_min, step, state, why, SUM(n_trained), COUNT(*) FROM rollout "
    "WHERE gid > 0 GROUP BY env, version_min, step, state, why"
)
# Rows of old batches leave the index with their payloads; the sums of their batches stay.
_FREED = (
    "SELECT rollup.env, batch.step, rollup.trained, rollup.n, COALESCE(kept.trained, 0), "
    "COALESCE(kept.n, 0) FROM rollup JOIN batch ON batch.no = rollup.batch_no LEFT JOIN "
    "(SELECT batch_no, COALESCE(env, '') AS env, SUM(n_trained) AS trained, COUNT(*) AS n "
    "FROM rollout WHERE gid > 0 AND batch_no IS NOT NULL GROUP BY batch_no, COALESCE(env, '')) "
    "AS kept ON kept.batch_no = rollup.batch_no AND kept.env = rollup.env "
    "WHERE batch.state IN ('acked', 'committed') AND rollup.n > COALESCE(kept.n, 0)"
)
_OLDEST = "SELECT MIN(gid) FROM rollout WHERE gid > 0"


def index_account(
    index: Index, accounts: Sequence[ProcessAccount], now: float, by: str = ""
) -> RunAccount:
    """The balance of the reports ``accounts`` and the rows of the index."""
    return run_account(accounts, row_totals(index), now, by, has_freed_rows(index))


def row_totals(index: Index) -> list[RowTotal]:
    """Trained tokens by environment, version, step and state."""
    totals = [RowTotal(*row) for row in index.read(_ROWS)]
    for env, step, trained, n, kept_trained, kept_n in index.read(_FREED):
        freed = RowTotal(
            env, None, step, "committed", None, trained - kept_trained, n - kept_n
        )
        totals.append(freed)
    return [row._replace(tokens=row.tokens or 0) for row in totals]


def has_freed_rows(index: Index) -> bool:
    """Whether the oldest groups of the run are no longer in the index."""
    [(oldest,)] = index.read(_OLDEST)
    return oldest is not None and oldest > index.begun[0] + 1
