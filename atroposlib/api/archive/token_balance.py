"""Balance of tokens over an index: its rows as totals, and figures for the status of the run.

The figures are read again after some seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

import apsw

from atroposlib.api.archive.index import Index
from atroposlib.api.common.run_record import ProcessAccount, RunRecord
from atroposlib.api.decisions.balance import RowTotal, run_account
from atroposlib.api.decisions.useful import LastSteps, UsefulShares, step_totals
from atroposlib.wire.explore import RunAccount
from atroposlib.wire.status import TokenReport

EVERY_S = 5.0
REST = 20.0  # a balance that took long to read is kept for this many times as long
WAIT_S = 0.3  # maximum wait of a status; then it has the figures of before
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


class TokenBalance:
    """The last balance that this process read, and the shares at the last steps."""

    def __init__(self, index: Index, clock: Callable[[], float]) -> None:
        self._index, self._clock = index, clock
        self._reading: asyncio.Task[None] | None = None
        self._run_id: str | None = None
        self._begin("")

    def _begin(self, run_id: str) -> None:
        """Forget the figures: they are those of another run."""
        self._run_id, self._last_steps = run_id, LastSteps()
        self._account: RunAccount | None = None
        self._shares: UsefulShares | None = None
        self._at, self._pause_s = float("-inf"), 0.0

    async def report(self, run: RunRecord, steps: int) -> TokenReport | None:
        """The figures after ``steps`` trained batches; None before the first of a run."""
        if self._run_id != run.run_id:
            self._begin(run.run_id)
        if self._reading is None and self._clock() - self._at >= self._pause_s:
            self._reading = asyncio.create_task(self._read(run, steps))
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=WAIT_S)
        account, shares = self._account, self._shares
        if account is None:
            return None
        return TokenReport(
            age_s=max(0.0, self._clock() - self._at),
            generated=account.generated,
            trained=account.trained,
            moving=account.moving,
            unknown=account.unknown,
            useful=account.useful,
            useful_recent=shares and shares.recent,
            useful_usual=shares and shares.usual,
            recent_losses=dict(shares.losses) if shares else {},
        )

    async def _read(self, run: RunRecord, steps: int) -> None:
        at, began = self._clock(), monotonic()
        accounts = tuple(run.accounts.values())
        try:
            account = await asyncio.to_thread(index_account, self._index, accounts, at)
        except apsw.Error:
            return  # the index is being closed, or its disk fails: the figures stay
        finally:
            self._reading = None
        if self._run_id != run.run_id:
            return  # a reset came in between
        self._account, self._at = account, at
        self._pause_s = max(EVERY_S, REST * (monotonic() - began))
        self._shares = self._last_steps.add(step_totals(account, steps, at))
