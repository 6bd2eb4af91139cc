"""Explorers of ended runs, opened by a request and closed soon after.

An open explorer holds the lock of the data directory, so a run could not go on meanwhile: it is
closed ``IDLE_S`` after the last request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from atroposlib.api.archive.explorer import Explorer
from atroposlib.api.archive.load import open_explorer
from atroposlib.api.store.sqlite import DATABASE
from atroposlib.errors import ConfigError
from atroposlib.workbench.run_folders import RunDirectory

IDLE_S = 20.0
MAX_OPEN = 4


@dataclass
class OpenView:
    """An explorer, and the app that shows it."""

    explorer: Explorer
    app: Any
    close: Callable[[], None]
    used: float = 0.0
    users: int = field(default=0)


class Views:
    """Open explorers by the key of their run. For threads.

    Args:
        app_of: makes the app of an explorer.
        clock: seconds.
    """

    def __init__(
        self,
        app_of: Callable[[Explorer], Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app_of, self._clock = app_of, clock
        self._open: dict[str, OpenView] = {}
        self._lock = threading.Lock()

    @contextmanager
    def use(self, run: RunDirectory) -> Iterator[OpenView]:
        """The view of a run, which stays open inside.

        Raises:
            StoreLocked: the run goes on.
            ConfigError: it keeps no rollouts.
        """
        with self._lock:
            view = self._open.get(run.key) or self._opened_view(run)
            view.users += 1
        try:
            yield view
        finally:
            with self._lock:
                view.users -= 1
                view.used = self._clock()

    def _opened_view(self, run: RunDirectory) -> OpenView:
        if not (run.data / DATABASE).is_file():
            raise ConfigError(f"{run.name} keeps no rollouts: it has no data of a rollout API")
        self._close(MAX_OPEN - 1)
        with ExitStack() as stack:
            _, explorer = stack.enter_context(open_explorer(run.data, None))
            close = stack.pop_all().close
        view = OpenView(explorer, self._app_of(explorer), close, self._clock())
        self._open[run.key] = view
        return view

    def close_idle(self) -> None:
        """Close views without a request for a while."""
        with self._lock:
            self._close(MAX_OPEN, self._clock() - IDLE_S)

    def close(self) -> None:
        with self._lock:
            self._close(0)

    def _close(self, kept: int, before: float | None = None) -> None:
        """Close unused views but the newest ``kept``, and views last used ``before``."""
        unused = [key for key, view in self._open.items() if view.users == 0]
        unused.sort(key=lambda key: self._open[key].used)
        n_surplus = max(0, len(self._open) - kept)
        for at, key in enumerate(unused):
            is_idle = before is not None and self._open[key].used <= before
            if at < n_surplus or is_idle:
                self._open.pop(key).close()
