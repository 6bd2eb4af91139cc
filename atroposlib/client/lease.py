"""Extension of a batch's lease from a thread, while the trainer computes a step."""

from __future__ import annotations

import logging
import threading
from contextlib import closing
from typing import Protocol

from atroposlib import wire
from atroposlib.errors import AtroposError, RolloutApiUnavailable, surviving

log = logging.getLogger(__name__)


class LeaseClient(Protocol):
    """Methods of :class:`~atroposlib.client.RolloutClient` that a lease uses."""

    def extend(self, batch: wire.ClaimedBatch, *, lease_s: float) -> None: ...

    def close(self) -> None: ...


class LeaseKeeper:
    """Context manager with a thread that extends a lease at once and at every third of it.

    It owns ``client``. The loss of the lease does not interrupt the step: :meth:`check` and the
    ack raise it. An API that is absent for a while is no loss if it returns in time.
    """

    def __init__(self, client: LeaseClient, batch: wire.ClaimedBatch, lease_s: float) -> None:
        self._client = client
        self._batch = batch
        self._lease_s = lease_s
        self._lost: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def check(self) -> None:
        """Raise the error that ended the lease, if any.

        Raises:
            StaleGeneration, NotRegistered: another trainer or delivery owns the batch.
        """
        if self._lost is not None:
            raise self._lost

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop extending. Waits for a pending call, at most for the duration of the lease."""
        self._stop.set()
        self._thread.join(timeout=self._lease_s)

    def _run(self) -> None:
        with closing(self._client), surviving(self._lose):
            self._extend()
            while self._lost is None and not self._stop.wait(self._lease_s / 3):
                self._extend()

    def _extend(self) -> None:
        try:
            self._client.extend(self._batch, lease_s=self._lease_s)
        except RolloutApiUnavailable as error:
            log.warning(
                "the lease of batch %s was not extended: %s", self._batch.batch_no, error
            )
        except AtroposError as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        self._lost = error
        log.error("the lease of batch %s is lost: %s", self._batch.batch_no, error)
