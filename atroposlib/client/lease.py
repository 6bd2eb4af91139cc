"""Keeps the lease of one batch alive while a step takes as long as it takes."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from atroposlib.errors import AtroposError, RolloutApiUnavailable
from atroposlib.wire import ClaimedBatch

log = logging.getLogger(__name__)


class Extends(Protocol):
    """What is needed of a client."""

    def extend(self, batch: ClaimedBatch, *, lease_s: float) -> None: ...

    def close(self) -> None: ...


class LeaseKeeper:
    """A thread that extends a lease at once and then every third of it, on entering a
    ``with`` block. It owns ``client``.

    Losing the lease does not interrupt the step: :meth:`check` says so when asked, and so
    does the ack. An API that is away for a while is no loss as long as it comes back.
    """

    def __init__(self, client: Extends, batch: ClaimedBatch, lease_s: float) -> None:
        self._client = client
        self._batch = batch
        self._lease_s = lease_s
        self._lost: AtroposError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def check(self) -> None:
        """Raise what took the lease away, if anything did.

        Raises:
            StaleGeneration, NotRegistered: the batch is somebody else's now.
        """
        if self._lost is not None:
            raise self._lost

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop extending. A call under way is not waited for longer than a lease lasts."""
        self._stop.set()
        self._thread.join(timeout=self._lease_s)

    def _run(self) -> None:
        try:
            self._extend()
            while self._lost is None and not self._stop.wait(self._lease_s / 3):
                self._extend()
        finally:
            self._client.close()

    def _extend(self) -> None:
        try:
            self._client.extend(self._batch, lease_s=self._lease_s)
        except RolloutApiUnavailable as error:
            log.warning(
                "the lease of batch %s was not extended: %s", self._batch.batch_no, error
            )
        except AtroposError as error:
            self._lost = error
            log.error("the lease of batch %s is lost: %s", self._batch.batch_no, error)
