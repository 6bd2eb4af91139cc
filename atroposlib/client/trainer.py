"""The client of trainers and tools; it blocks."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from atroposlib.client import api_calls
from atroposlib.client.retry import (
    ApiCall,
    ConnectionSettings,
    RetryLater,
    interpret,
    problem_of,
)
from atroposlib.errors import AtroposError, NotRegistered, RolloutApiUnavailable
from atroposlib.wire import (
    AckRequest,
    CheckpointRequest,
    ClaimedBatch,
    ClaimRequest,
    Committed,
    ExtendRequest,
    Heartbeat,
    Registered,
    Registration,
    Rewound,
    RunStatus,
)

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)
T = TypeVar("T")


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


class RolloutClient:
    """For trainers and tools; blocks. Not for several threads at once.

    Every call may raise RolloutApiUnavailable, RolloutApiRefused, and, where the API asks
    for tokens, Unauthorized and Forbidden. Calls about batches raise NotRegistered before
    :meth:`register`, or when the API forgot the run, and StaleGeneration once another trainer or
    another delivery took over: stop then, or register again.

    Args:
        token: of scope trainer (or admin, for :meth:`reset`); ATROPOS_API_TOKEN if None.
        transport: what carries the requests, if not a socket.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float = 60.0,
        give_up_after_s: float = 600.0,
        on_wait: Callable[[str], None] | None = None,
        token: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        import httpx

        self._settings = ConnectionSettings(
            base_url, timeout_s, give_up_after_s, on_wait, token
        )
        self._http = httpx.Client(
            trust_env=False, transport=transport, verify=self._settings.verify()
        )
        self._generation: int | None = None
        self._claim_id: str | None = None  # id of a claim whose answer has not come

    # --- the run ------------------------------------------------------------------

    def register(self, registration: Registration) -> Registered:
        """Open the run, or take it over from a trainer that is no more."""
        registered = self._send(api_calls.register(registration))
        self.adopt_generation(registered.generation)
        return registered

    def adopt_generation(self, generation: int) -> None:
        """Take part in what another rank registered, as ``Registered.generation`` says."""
        self._generation = generation
        self._claim_id = None

    @property
    def generation(self) -> int:
        """The trainer generation this client speaks for.

        Raises:
            NotRegistered: none yet.
        """
        if self._generation is None:
            raise NotRegistered("this client has not registered: call register() first")
        return self._generation

    def announce_version(self, version: int) -> None:
        """Every inference server now holds ``version``."""
        self._send(api_calls.announce_version(version))

    def reset(self) -> None:
        """Wipe the run and everything queued."""
        self._send(api_calls.reset())
        self._generation = None

    # --- batches --------------------------------------------------------------------

    def claim(
        self,
        *,
        lease_s: float = 600.0,
        wait_s: float = 5.0,
        world_size: int = 1,
        rank: int | None = None,
        binary: bool = False,
        claim_id: str | None = None,
    ) -> ClaimedBatch:
        """The next batch; ``batch`` is None with a ``blocked_reason`` if none formed.

        The same claim is repeated until its answer is here, also over several calls that
        gave up: it brings the same batch. After an answer the next claim brings the next
        batch, whether or not the first was acked, so a trainer may fetch ahead. A batch
        whose lease ended, or that a former trainer held, comes again with ``epoch`` one
        higher.

        Args:
            lease_s: how long the batch is this trainer's; see :meth:`extend`.
            wait_s: how long the API may hold the call until a batch forms, at most 30.
            world_size: ranks that will ack.
            rank: deliver the shard of this rank only; None: all groups.
            binary: transfer arrays instead of JSON; the batch is the same.
            claim_id: name the claim, to repeat it after a restart of this process.
        """
        self._claim_id = claim_id or self._claim_id or uuid.uuid4().hex
        request = ClaimRequest(
            generation=self.generation,
            lease_s=lease_s,
            wait_s=wait_s,
            claim_id=self._claim_id,
            world_size=world_size,
            rank=rank,
        )
        timeout_s = self._settings.timeout_s
        claimed = self._send(api_calls.claim(request, binary=binary, timeout_s=timeout_s))
        self._claim_id = None
        return claimed

    def shard(
        self, batch_no: int, epoch: int, rank: int, *, binary: bool = False
    ) -> ClaimedBatch:
        """The groups of one rank, of a batch that some rank claimed."""
        return self._send(
            api_calls.shard(
                batch_no, rank, generation=self.generation, epoch=epoch, binary=binary
            )
        )

    def ack(self, batch: ClaimedBatch, *, rank: int | None = None) -> bool:
        """The batch was trained on. True for the call that made it so, else False.

        With a ``rank`` it is acked once every rank of the claim's world has said so.
        """
        no, epoch = number_and_epoch(batch)
        request = AckRequest(generation=self.generation, epoch=epoch, rank=rank)
        return self._send(api_calls.ack(no, request))

    def extend(self, batch: ClaimedBatch, *, lease_s: float = 600.0) -> None:
        """The step takes longer: the lease ends ``lease_s`` from now."""
        no, epoch = number_and_epoch(batch)
        request = ExtendRequest(generation=self.generation, epoch=epoch, lease_s=lease_s)
        self._send(api_calls.extend(no, request))

    def keep_lease(self, batch: ClaimedBatch, *, lease_s: float = 600.0) -> LeaseKeeper:
        """Keep the lease alive from another thread while a ``with`` block runs."""
        number_and_epoch(batch)
        client = RolloutClient(
            self._settings.url,
            timeout_s=min(self._settings.timeout_s, lease_s),
            give_up_after_s=lease_s,
            token=self._settings.token or "",
        )
        client.adopt_generation(self.generation)
        return LeaseKeeper(client, batch, lease_s)

    holding = keep_lease  # former name

    def commit(self, batch_no: int) -> Committed:
        """A durable checkpoint holds the effect of all batches up to ``batch_no``."""
        return self._send(
            api_calls.commit(batch_no, CheckpointRequest(generation=self.generation))
        )

    def rewind(self, batch_no: int) -> Rewound:
        """Training starts from the checkpoint that holds batches up to ``batch_no``, 0 for
        none: what was acked after it is delivered again, first and in its order."""
        self._claim_id = None
        return self._send(
            api_calls.rewind(batch_no, CheckpointRequest(generation=self.generation))
        )

    # --- what is going on -----------------------------------------------------------

    def heartbeat(self, beat: Heartbeat) -> None:
        """Say what this process does. Best effort: never waits, never raises."""
        self._try(api_calls.heartbeat(beat))

    def status(self) -> RunStatus:
        """What the run does and what it waits for."""
        return self._send(api_calls.status())

    def health(self) -> bool:
        """Whether the API answers now. Does not wait."""
        return self._try(api_calls.health())

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> RolloutClient:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # --- sending --------------------------------------------------------------------

    def _try(self, call: ApiCall[None]) -> bool:
        import httpx

        try:
            return self._request(call).is_success
        except httpx.RequestError as error:
            log.debug("%s not delivered: %s", call.path, problem_of(error))
            return False

    def _send(self, call: ApiCall[T]) -> T:
        import httpx

        policy = self._settings.retry_policy()
        while True:
            answer: T | RetryLater
            try:
                answer = interpret(call, self._request(call))
            except httpx.RequestError as error:
                answer = RetryLater(problem_of(error))
            if not isinstance(answer, RetryLater):
                return answer
            time.sleep(policy.pause_after(answer))

    def _request(self, call: ApiCall[T]) -> httpx.Response:
        return self._http.request(
            **self._settings.arguments(
                call.method, call.path, call.body, call.headers, call.timeout_s
            )
        )


def number_and_epoch(batch: ClaimedBatch) -> tuple[int, int]:
    """Number and epoch of a batch that is there."""
    if batch.batch_no is None or batch.epoch is None:
        raise ValueError("there is no batch in an empty claim")
    return batch.batch_no, batch.epoch
