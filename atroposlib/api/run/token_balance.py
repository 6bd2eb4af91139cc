"""Figures of the balance of tokens for the status of a run, read again after some seconds."""

from __future__ import annotations

import asyncio
from time import monotonic

import apsw

from atroposlib.api.archive.row_totals import index_account
from atroposlib.api.common.run_record import RunRecord
from atroposlib.api.decisions.useful import LastSteps, UsefulShares, step_totals
from atroposlib.api.run.context import ServiceContext
from atroposlib.wire.explore import RunAccount
from atroposlib.wire.status import TokenReport

EVERY_S = 5.0
REST = 20.0  # a balance that took long to read is kept for this many times as long
WAIT_S = 0.3  # maximum wait of a status; then it has the figures of before


class TokenBalance:
    """The last balance that this process read, and the shares at the last steps."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._reading: asyncio.Task[None] | None = None
        self._run_id: str | None = None
        self._begin("")

    def _begin(self, run_id: str) -> None:
        """Forget the figures: they are those of another run."""
        self._run_id, self._last_steps = run_id, LastSteps()
        self._account: RunAccount | None = None
        self._shares: UsefulShares | None = None
        self._at, self._pause_s = float("-inf"), 0.0

    async def report(self, steps: int) -> TokenReport | None:
        """The figures after ``steps`` trained batches; None before the first of a run."""
        context = self._context
        if self._run_id != context.run.run_id:
            self._begin(context.run.run_id)
        if self._reading is None and context.clock() - self._at >= self._pause_s:
            self._reading = asyncio.create_task(self._read(context.run, steps))
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=WAIT_S)
        account, shares = self._account, self._shares
        if account is None:
            return None
        return TokenReport(
            age_s=max(0.0, context.clock() - self._at),
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
        index, at, began = self._context.indexer.index, self._context.clock(), monotonic()
        accounts = tuple(run.accounts.values())
        try:
            account = await asyncio.to_thread(index_account, index, accounts, at)
        except apsw.Error:
            return  # the index is being closed, or its disk fails: the figures stay
        finally:
            self._reading = None
        if self._run_id != run.run_id:
            return  # a reset came in between
        self._account, self._at = account, at
        self._pause_s = max(EVERY_S, REST * (monotonic() - began))
        self._shares = self._last_steps.add(step_totals(account, steps, at))
