"""Groups for the viewer: watched as they arrive, or taken in batches in a trainer's place."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from atroposlib.cli.view_run.shown_group import ShownGroup
from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError
from atroposlib.wire import ScoredData

KEPT = 200  # groups to browse back, as text
CLAIM_WAIT_S = 1.0


def newest_groups(client: RolloutClient) -> list[ScoredData]:
    """What the rollout API shows without taking anything from the trainer, newest last."""
    latest = client.latest_example()
    return [] if latest is None else [latest]


class GroupSource:
    """The groups seen so far, for all open pages; every call may come from another thread.

    Args:
        show: a group and its number, from 1 on, as the pages show it.
        take: claim and ack batches as the registered trainer, instead of watching.
    """

    def __init__(
        self, client: RolloutClient, show: Callable[[ScoredData, int], ShownGroup], take: bool
    ) -> None:
        self.take = take
        self.status = "no group yet"
        self._client, self._show = client, show
        self._kept: deque[ShownGroup] = deque(maxlen=KEPT)
        self._last: ScoredData | None = None
        self._lock = threading.Lock()

    def fetch(self) -> None:
        """Claim a batch, or look once for newer groups; a failure is the status."""
        with self._lock:
            try:
                self.status = self._claim() if self.take else self._watch()
            except (AtroposError, ValueError) as error:
                self.status = str(error)

    def after(self, number: int) -> ShownGroup | None:
        """The first kept group after ``number``."""
        return next((one for one in list(self._kept) if one.number > number), None)

    def before(self, number: float) -> ShownGroup | None:
        """The last kept group before ``number``."""
        return next((one for one in reversed(list(self._kept)) if one.number < number), None)

    def _watch(self) -> str:
        for group in newest_groups(self._client):
            if group != self._last:
                self._add(group)
        return f"watching: {self._count()} groups seen"

    def _claim(self) -> str:
        claimed = self._client.claim(wait_s=CLAIM_WAIT_S)
        if claimed.batch is None:
            return f"no batch: {claimed.blocked_reason}"
        for group in claimed.batch:
            self._add(group)
        self._client.ack(claimed)
        return f"took batch {claimed.batch_no}: {len(claimed.batch)} groups"

    def _add(self, group: ScoredData) -> None:
        self._last = group
        self._kept.append(self._show(group, self._count() + 1))

    def _count(self) -> int:
        return self._kept[-1].number if self._kept else 0
