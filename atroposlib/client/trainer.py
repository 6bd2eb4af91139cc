"""Blocking client of the rollout API, for trainers and tools."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from pydantic import ValidationError

from atroposlib import wire
from atroposlib.client.api_calls import (
    BEST_EFFORT_TIMEOUT_S,
    GIVE_UP_AFTER_S,
    JSON_BODY,
    ApiCall,
    ConnectionSettings,
    RetryLater,
    RetryPolicy,
    Timing,
    connection_problem,
    heartbeat,
    interpret,
    list_servers,
    mapping,
    model,
    nothing,
    post,
)
from atroposlib.client.groups import ACCEPT_FRAMES, read_claimed
from atroposlib.client.lease import LeaseKeeper
from atroposlib.errors import ConfigError, NotRegistered, RunTaken
from atroposlib.wire import ids

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)
T = TypeVar("T")
# The API counts a trainer as dead after 6 s without a heartbeat; a trainer that is refused for
# longer than that competes with a live trainer.
TAKEN_AFTER_S, TAKEN_POLL_S = 9.0, 0.5


class RolloutClient:
    """Client of trainers and tools; blocking, not thread-safe.

    Every call may raise RolloutApiUnavailable, RolloutApiRefused, and, where the API asks
    for tokens, Unauthorized and Forbidden. Calls about batches raise NotRegistered before
    :meth:`register`, or when the API forgot the run, and StaleGeneration once another trainer or
    another delivery took over: stop then, or register again.

    Args:
        token: of scope trainer (or admin, for :meth:`reset`); ATROPOS_API_TOKEN if None.
        transport, timing: replace sockets, clock, pauses and jitter, for tests.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float = 60.0,
        give_up_after_s: float = GIVE_UP_AFTER_S,
        on_wait: Callable[[str], None] | None = None,
        token: str | None = None,
        transport: httpx.BaseTransport | None = None,
        timing: Timing | None = None,
    ) -> None:
        import httpx

        self._settings = ConnectionSettings(
            base_url, timeout_s, give_up_after_s, on_wait, token, timing
        )
        transport = transport or httpx.HTTPTransport(**self._settings.transport())
        self._http = httpx.Client(trust_env=False, transport=transport)
        self._generation: int | None = None
        self._incarnation: int | None = None
        self._claim_id: str | None = None  # id of a claim without a batch yet

    # --- the run ------------------------------------------------------------------

    def register(self, registration: wire.Registration) -> wire.Registered:
        """Open the run, or take it over from an earlier trainer.

        With a ``life`` the call waits for an earlier trainer that may just have been killed.

        Raises:
            RunTaken: it is alive; names it.
            CannotRewind: the run does not fit ``holds``.
        """
        own_id = registration.register_id or ids.source().hex
        named = registration.model_copy(update={"register_id": own_id})
        call = post("/register", named, model(wire.Registered))
        timing = self._settings.timing
        started = timing.clock()
        while True:
            try:
                registered = self._send(call)
                break
            except RunTaken as taken:
                if timing.clock() - started > TAKEN_AFTER_S:
                    remedy = "stop it, or start this one with --take-over to replace it"
                    raise RunTaken(f"{taken}: {remedy}") from taken
                self._settings.on_wait(f"the end of another trainer: {taken}")
                timing.sleep(TAKEN_POLL_S)
        self.adopt_generation(registered.generation)
        self._incarnation = registered.incarnation or None
        return registered

    def adopt_generation(self, generation: int) -> None:
        """Use the trainer generation that another rank got by ``register``."""
        self._generation = generation
        self._claim_id = None

    @property
    def generation(self) -> int:
        """The trainer generation of this client's calls.

        Raises:
            NotRegistered: none yet.
        """
        if self._generation is None:
            raise NotRegistered("this client has not registered: call register() first")
        return self._generation

    def announce_version(self, version: int, ended: bool = False) -> None:
        """Report that every server holds ``version``, the last version if the trainer ``ended``."""
        life = self._incarnation
        held = wire.PolicyVersion(version=version, incarnation=life, ended=ended)
        self._send(post("/policy_version", held, nothing))

    def reset(self) -> None:
        """Wipe the run and everything queued."""
        self._send(post("/reset_data", None, nothing))
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
    ) -> wire.ClaimedBatch:
        """The next batch; ``batch`` is None with a ``blocked_reason`` if none formed.

        A claim is repeated with the same id until it brings a batch, also across calls that
        gave up: a late copy of the claim then leases no second batch. After that the next
        claim returns the next batch, whether or not the first was acked, so a trainer may
        prefetch. A batch whose lease ended, or that an earlier trainer held, is delivered
        again with ``epoch`` increased by 1.

        Args:
            lease_s: duration of the lease of the batch; see :meth:`extend`.
            wait_s: how long the API may hold the call until a batch forms, at most 30.
            world_size: ranks that will ack.
            rank: deliver the shard of this rank only; None: all groups.
            binary: transfer arrays instead of JSON; the batch is the same.
            claim_id: id of the claim, for repeating it after a restart of this process.
        """
        self._claim_id = claim_id or self._claim_id or ids.source().hex
        request = wire.ClaimRequest(
            generation=self.generation,
            lease_s=lease_s,
            wait_s=wait_s,
            claim_id=self._claim_id,
            world_size=world_size,
            rank=rank,
        )
        timeout_s = self._settings.timeout_s + wait_s
        headers = ACCEPT_FRAMES if binary else {}
        claimed = self._send(post("/batches/claim", request, read_claimed, timeout_s, headers))
        if claimed.batch is not None:
            self._claim_id = None
        return claimed

    def shard(
        self, batch_no: int, epoch: int, rank: int, *, binary: bool = False
    ) -> wire.ClaimedBatch:
        """The groups of a rank, of a batch that some rank claimed."""
        path = f"/batches/{batch_no}/shards/{rank}?generation={self.generation}&epoch={epoch}"
        headers = ACCEPT_FRAMES if binary else {}
        return self._send(ApiCall("GET", path, read_claimed, headers=headers))

    def ack(self, batch: wire.ClaimedBatch, *, rank: int | None = None) -> bool:
        """Mark the batch as trained on. True for the first call that does.

        With a ``rank`` it is acked once every rank of the claim's world has acked.
        """
        no, epoch = number_and_epoch(batch)
        request = wire.AckRequest(generation=self.generation, epoch=epoch, rank=rank)
        return bool(self._send(post(f"/batches/{no}/ack", request, mapping)).get("first"))

    def send_notes(
        self, batch: wire.ClaimedBatch, notes: Sequence[bytes], *, rank: int | None = None
    ) -> int:
        """Report what a step computed of the batch, of ``wire.notes.pack_notes`` per group.

        With a ``rank`` the groups are its shard. Returns the number of noted rows.
        """
        import zstandard  # both load only where they are used

        from atroposlib.wire.binary import concatenate_frames

        no, epoch = number_and_epoch(batch)
        query = f"generation={self.generation}&epoch={epoch}"
        query += "" if rank is None else f"&rank={rank}"
        body = zstandard.ZstdCompressor(level=1).compress(concatenate_frames(notes))
        headers = {"content-type": "application/x-atropos-notes", "content-encoding": "zstd"}
        call = ApiCall("POST", f"/batches/{no}/notes?{query}", mapping, body, headers)
        return int(self._send(call).get("noted", 0))

    def report_step(self, report: wire.StepReport) -> None:
        """Report the numbers of a step."""
        self._send(post("/steps", report, nothing))

    def extend(self, batch: wire.ClaimedBatch, *, lease_s: float = 600.0) -> None:
        """Extend the lease: it ends ``lease_s`` from now."""
        no, epoch = number_and_epoch(batch)
        request = wire.ExtendRequest(generation=self.generation, epoch=epoch, lease_s=lease_s)
        self._send(post(f"/batches/{no}/extend", request, nothing))

    def keep_lease(self, batch: wire.ClaimedBatch, *, lease_s: float = 600.0) -> LeaseKeeper:
        """Extend the lease from another thread while a ``with`` block runs."""
        number_and_epoch(batch)
        client = RolloutClient(
            self._settings.base_url,
            timeout_s=min(self._settings.timeout_s, lease_s),
            give_up_after_s=lease_s,
            token=self._settings.token or "",
        )
        client.adopt_generation(self.generation)
        return LeaseKeeper(client, batch, lease_s)

    def commit(self, batch_no: int) -> wire.Committed:
        """A durable checkpoint holds the effect of all batches up to ``batch_no``."""
        request = wire.CheckpointRequest(generation=self.generation)
        return self._send(post(f"/batches/{batch_no}/commit", request, model(wire.Committed)))

    def rewind(self, batch_no: int) -> wire.Rewound:
        """Continue from the checkpoint that holds batches up to ``batch_no``; 0 for none.

        Batches acked after it come again, first and in their order.
        """
        self._claim_id = None
        own_id = ids.source().hex
        request = wire.CheckpointRequest(generation=self.generation, rewind_id=own_id)
        return self._send(post(f"/batches/{batch_no}/rewind", request, model(wire.Rewound)))

    def dead_batches(self) -> list[dict[str, int]]:
        """``no``, ``groups``, ``sequences``, ``n_bytes`` of batches that were set aside; ``no``
        0 stands for all damaged groups."""
        batches: list[dict[str, int]]
        batches = self._send(ApiCall("GET", "/batches/dead", mapping))["batches"]
        return batches

    def settle_dead(self, batch_no: int, verb: Literal["revive", "drop"]) -> bool:
        """Deliver a dead batch again, or free it. False if there is none of this number."""
        path = f"/batches/{batch_no}/{verb}"
        return bool(self._send(post(path, None, mapping))["found"])

    def steer(self, env: str, **changes: Any) -> dict[str, Any]:
        """Set ``state``, ``weight`` or ``max_rollouts`` of an environment (None: its own value).

        Returns what is set for all environments.

        Raises:
            UnknownEnv: no environment of the run has the name.
            ConfigError: a value that the API would refuse.
        """
        try:
            asked = wire.SteerRequest(env=env, **changes)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise ConfigError(f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from error
        body = asked.model_dump_json(exclude_unset=True).encode()
        call = ApiCall("POST", "/steer", mapping, body, JSON_BODY)
        return dict(self._send(call)["steering"])

    # --- status ---------------------------------------------------------------------

    def heartbeat(self, beat: wire.Heartbeat) -> None:
        """Send a heartbeat. Best effort: never waits, never raises."""
        self._answer(heartbeat(beat))

    def status(self) -> wire.RunStatus:
        """State of the run and what it waits for."""
        return self._send(ApiCall("GET", "/status", model(wire.RunStatus)))

    def servers(self) -> wire.ServerDirectory | None:
        """The announced inference servers. None: no answer now; never waits."""
        call = list_servers()
        answer = self._answer(call)
        return None if answer is None else call.read(answer)

    def wandb_info(self) -> dict[str, Any]:
        """``group`` and ``project`` of the run; null before a trainer registers."""
        return self._send(ApiCall("GET", "/wandb_info", mapping))

    def latest_example(self) -> wire.ScoredData | None:
        """The group that was posted last; None before the first, or if it was freed."""
        fields = self._send(ApiCall("GET", "/latest_example", mapping))
        return msgspec.convert(fields, wire.ScoredData) if fields.get("tokens") else None

    def health(self) -> bool:
        """Whether the API answers now, without retries."""
        call = ApiCall("GET", "/health", nothing, timeout_s=BEST_EFFORT_TIMEOUT_S)
        return self._answer(call) is not None

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> RolloutClient:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # --- sending --------------------------------------------------------------------

    def _answer(self, call: ApiCall[Any]) -> httpx.Response | None:
        """Successful answer to a single request, or None."""
        import httpx

        try:
            answer = self._request(call)
        except httpx.RequestError as error:
            log.debug("%s not delivered: %s", call.path, connection_problem(error))
            self._settings.look_again()
            return None
        return answer if answer.is_success else None

    def _send(self, call: ApiCall[T]) -> T:
        began = self._settings.timing.clock()
        answer = self._answer_to(call)
        if not isinstance(answer, RetryLater):
            return answer
        with RetryPolicy(self._settings, began) as policy:
            while isinstance(answer, RetryLater):
                self._settings.timing.sleep(policy.pause_after(answer))
                answer = self._answer_to(call)
        return answer

    def _answer_to(self, call: ApiCall[T]) -> T | RetryLater:
        import httpx

        try:
            return interpret(call, self._request(call))
        except httpx.RequestError as error:
            return RetryLater(connection_problem(error))

    def _request(self, call: ApiCall[T]) -> httpx.Response:
        return self._http.request(**self._settings.arguments(call))


def number_and_epoch(batch: wire.ClaimedBatch) -> tuple[int, int]:
    """Number and epoch of a claimed batch.

    Raises:
        ValueError: the claim is empty.
    """
    if batch.batch_no is None or batch.epoch is None:
        raise ValueError("there is no batch in an empty claim")
    return batch.batch_no, batch.epoch
