"""Cached run document with compare-and-swap updates.

A transition loads the run, applies a pure function and saves with the revision that it read.
If another process saved in between, the store rejects the save and the function is applied to
the newer run. Nothing is locked across processes, and replies report durable state only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from time import monotonic

import msgspec

from atroposlib.api.common.pools import Pool
from atroposlib.api.common.records import RunDocument
from atroposlib.api.common.run_record import EnvEntry, RunRecord
from atroposlib.api.decisions.run_state import run_of
from atroposlib.api.store import Store
from atroposlib.api.store.sql.run import LoadRun, SaveRun
from atroposlib.errors import AtroposError, ConfigError, RunChanged, StoreError

MAX_ATTEMPTS = 50  # tries of a transition; a failure is a transition of another process
SHARED_STORE_LAG_S = 0.25  # maximum age of a copy while several processes write


@dataclass(frozen=True, slots=True)
class RunView:
    """The run with its revision and trainer generation in the store."""

    run: RunRecord
    revision: int
    generation: int
    whole: bool = False  # its environments are in its body, as in earlier versions


@dataclass(eq=False, slots=True)
class _Change:
    event: Callable[[RunRecord], RunRecord]
    fence: bool
    view: RunView | None = None  # once it is saved
    error: AtroposError | None = None  # once it is refused


class RunCache:
    """The latest known run. ``on_change(old, new)`` is called with each newer run."""

    def __init__(
        self, store: Store, pool: Pool, on_change: Callable[[RunView, RunView], None]
    ) -> None:
        self._store = store
        self._pool = pool
        self._on_change = on_change
        self._turn = asyncio.Lock()  # concurrent saves of a process would only conflict
        self._waiting: list[_Change] = []  # order of their turns
        self.view = _view_of(store.ask(LoadRun()))
        self._read_at = monotonic()

    async def update(
        self, event: Callable[[RunRecord], RunRecord], *, fence: bool = False
    ) -> RunView:
        """Apply ``event`` to the current run and save it; returns a view of the saved run.

        Changes that arrive during a save are saved together, because hundreds of environments
        may join at once. ``fence`` begins the next trainer generation and is saved alone, so
        its view shows exactly that transition; if ``event`` returns the run that it was given,
        nothing is saved and no generation begins. An ``event`` that raises an AtroposError does
        not affect the rest. ``event`` may be called again on a newer run.

        Raises:
            RunChanged: concurrent processes kept changing the run.
        """
        mine = _Change(event, fence)
        self._waiting.append(mine)
        try:
            async with self._turn:
                if mine.view is None and mine.error is None:
                    await self._settle()
        finally:
            if mine in self._waiting:  # cancelled before its turn
                self._waiting.remove(mine)
        if mine.error is not None:
            raise mine.error
        assert mine.view is not None
        return mine.view

    async def _settle(self) -> None:
        """Save the changes at the head of the line, even if this call is cancelled."""
        alone = self._waiting[0].fence
        group = [self._waiting[0]]
        if not alone:
            group = list(takewhile(lambda change: not change.fence, self._waiting))
        del self._waiting[: len(group)]
        saving = asyncio.ensure_future(self._save(group, fence=alone))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            await asyncio.wait([saving])
            raise
        finally:  # also after an unforeseen error: every caller gets a result
            lost = [entry for entry in group if entry.view is None and entry.error is None]
            _refuse(lost, StoreError("the run could not be saved; the log has the traceback"))

    async def _save(self, group: list[_Change], *, fence: bool) -> None:
        for _ in range(MAX_ATTEMPTS):
            view = self.view
            run = _after(view.run, group)
            agreed = [change for change in group if change.error is None]
            changed = run is not view.run if fence else run != view.run
            if agreed and changed:
                if not _follows(run.envs, view.run.envs):
                    run = msgspec.structs.replace(run, edits=run.edits + 1)
                body = msgspec.json.encode(msgspec.structs.replace(run, envs=()))
                fork = run.starts[-1] if run.incarnation > view.run.incarnation else None
                envs = _changed(() if view.whole else view.run.envs, run.envs)
                save = SaveRun(body, view.revision, fence=fence, fork=fork, envs=envs)
                try:
                    document = await self._pool.run(self._store.do, save)
                except RunChanged:
                    await self.refresh()
                    continue
                except StoreError as error:
                    _refuse(agreed, error)
                    return
                view = self.apply(RunView(run, document.revision, document.generation))
            for change in agreed:
                change.view = view
            return
        _refuse(group, RunChanged("the run kept changing: try again"))

    async def refresh(self) -> bool:
        """Read the run from the store. True if it was newer than the cached run."""
        known = self.view
        last = known.run.envs[-1].env_id if known.run.envs else -1
        document = await self._pool.run(self._store.ask, LoadRun(last))
        if document.revision > known.revision:
            view = _view_of(document)
            if known.run.envs and not _extends(view, known):
                view = _view_of(await self._pool.run(self._store.ask, LoadRun()))
            elif known.run.envs:
                envs = known.run.envs + view.run.envs
                view = replace(view, run=msgspec.structs.replace(view.run, envs=envs))
            self.apply(view)
        self._read_at = monotonic()
        return self.view.revision > known.revision

    async def refresh_if_old(self) -> None:
        """Read the run again if another process may have changed it.

        A run without a trainer is always read: calls would be refused although the trainer
        has just registered at another replica.
        """
        lag = monotonic() - self._read_at
        if self._store.shared and (self.view.run.trainer is None or lag > SHARED_STORE_LAG_S):
            await self.refresh()

    def apply(self, view: RunView) -> RunView:
        """Cache ``view`` unless a newer view is cached; returns it."""
        if view.revision > self.view.revision:
            old, self.view = self.view, view
            self._on_change(old, view)
        return view


def _after(run: RunRecord, group: Sequence[_Change]) -> RunRecord:
    """The run after all changes of ``group`` that raise no error."""
    for change in group:
        change.error = None
        try:
            run = change.event(run)
        except AtroposError as refused:
            change.error = refused
    return run


def _refuse(group: Sequence[_Change], error: AtroposError) -> None:
    for change in group:
        change.error = error


def _view_of(document: RunDocument) -> RunView:
    try:
        run = run_of(document)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the stored run cannot be read: {error}") from error
    whole = len(run.envs) > len(document.envs)
    return RunView(run, document.revision, document.generation, whole)


def _extends(newer: RunView, known: RunView) -> bool:
    """Whether the environments of ``newer``, read from the end of ``known`` on, extend ``known``."""
    run, before = newer.run, known.run
    return not newer.whole and (run.run_id, run.edits) == (before.run_id, before.edits)


def _follows(envs: Sequence[EnvEntry], before: Sequence[EnvEntry]) -> bool:
    """Whether ``envs`` begin with ``before``. Cheap: equal entries are the same objects."""
    return envs[: len(before)] == before


def _changed(before: Sequence[EnvEntry], after: Sequence[EnvEntry]) -> dict[int, bytes | None]:
    """The documents to write, by environment; None: to delete."""
    if _follows(after, before):
        return {env.env_id: msgspec.json.encode(env) for env in after[len(before) :]}
    known = {env.env_id: env for env in before}
    changed: dict[int, bytes | None] = dict.fromkeys(known)
    for env in after:
        if known.get(env.env_id) == env:
            del changed[env.env_id]
        else:
            changed[env.env_id] = msgspec.json.encode(env)
    return changed


def require_plain(name: str, text: str | None) -> None:
    """Reject an id with a NUL character, which databases reject."""
    if text is not None and "\0" in text:
        raise ConfigError(f"{name}: no NUL character")
