"""Clients of the rollout API: :class:`RolloutClient` for trainers and tools, and
:class:`AsyncRolloutClient` for environments.

Both survive an API that is absent or restarts: a call that got no usable answer is sent
again with growing pauses until ``give_up_after_s``, and each pause is announced. That is
safe because every call is: posts carry an idempotency key, a claim brings the same batch
again, an ack is absorbed. Requests and answers are shared, in ``client_calls``.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import msgspec

from atroposlib.client_calls import (
    Call,
    Group,
    Settings,
    answer,
    as_dict,
    as_joined,
    call_to,
    problem_of,
    scored_data_list,
    status_and_detail,
)
from atroposlib.errors import NotRegistered
from atroposlib.wire import (
    AckRequest,
    ClaimedBatch,
    ClaimRequest,
    EnvIdentifier,
    EnvRegistered,
    EnvStatus,
    Heartbeat,
    PolicyVersion,
    Registered,
    RegisterEnv,
    Registration,
    RunStatus,
)

log = logging.getLogger(__name__)

BEST_EFFORT_TIMEOUT_S = 2.0


class RolloutClient:
    """For trainers and tools; blocks. Not for several threads at once.

    Every call may raise RolloutApiUnavailable and RolloutApiRefused.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float = 60.0,
        give_up_after_s: float = 600.0,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self._settings = Settings(base_url, timeout_s, give_up_after_s, on_wait)
        self._http = httpx.Client(trust_env=False)
        self._generation: int | None = None

    def register(self, registration: Registration) -> Registered:
        """Open the run, or take it over from a trainer that is no more."""
        body = self._send(call_to("POST", "/register", registration))
        registered = Registered.model_validate_json(body)
        self._generation = registered.generation
        return registered

    def claim(self, *, lease_s: float = 600.0, wait_s: float = 5.0) -> ClaimedBatch:
        """The next batch; ``batch`` is None with a ``blocked_reason`` if none formed.

        A batch that was claimed and not acked comes again, with ``epoch`` one higher.

        Raises:
            NotRegistered: :meth:`register` comes first, also after the API forgot the run.
            Fenced: another trainer has registered since.
        """
        request = ClaimRequest(generation=self._mine(), lease_s=lease_s, wait_s=wait_s)
        timeout_s = self._settings.timeout_s + wait_s
        body = self._send(call_to("POST", "/batches/claim", request, timeout_s=timeout_s))
        return msgspec.json.decode(body, type=ClaimedBatch)

    def ack(self, batch: ClaimedBatch) -> bool:
        """The batch was trained on. True the first time, False if that was known.

        Raises:
            Fenced: the batch was delivered again or to another trainer since.
        """
        if batch.batch_no is None or batch.epoch is None:
            raise ValueError("there is no batch to ack in an empty claim")
        request = AckRequest(generation=self._mine(), epoch=batch.epoch)
        body = self._send(call_to("POST", f"/batches/{batch.batch_no}/ack", request))
        return bool(as_dict(body)["first"])

    def announce_version(self, version: int) -> None:
        """Every inference server now holds ``version``."""
        self._send(call_to("POST", "/policy_version", PolicyVersion(version=version)))

    def heartbeat(self, beat: Heartbeat) -> None:
        """Say what this process does. Best effort: never waits, never raises."""
        call = call_to("POST", "/heartbeat", beat, timeout_s=BEST_EFFORT_TIMEOUT_S)
        try:
            self._http.request(**self._settings.arguments(call))
        except httpx.TransportError as error:
            log.debug("heartbeat not delivered: %s", problem_of(error))

    def status(self) -> RunStatus:
        """What the run does and what it waits for."""
        return RunStatus.model_validate_json(self._send(call_to("GET", "/status")))

    def health(self) -> bool:
        """Whether the API answers now. Does not wait."""
        call = call_to("GET", "/health", timeout_s=BEST_EFFORT_TIMEOUT_S)
        try:
            return self._http.request(**self._settings.arguments(call)).is_success
        except httpx.TransportError:
            return False

    def reset(self) -> None:
        """Wipe the run and everything queued."""
        self._send(call_to("POST", "/reset_data"))
        self._generation = None

    def close(self) -> None:
        self._http.close()

    def _mine(self) -> int:
        if self._generation is None:
            raise NotRegistered("this client has not registered: call register() first")
        return self._generation

    def _send(self, call: Call) -> bytes:
        patience = self._settings.patience()
        while True:
            try:
                response = self._http.request(**self._settings.arguments(call))
            except httpx.TransportError as error:
                problem = problem_of(error)
            else:
                if response.status_code < 500:
                    return answer(response)
                problem = f"HTTP {response.status_code} {status_and_detail(response)[1]}"
            time.sleep(patience.pause_after(problem))


class AsyncRolloutClient:
    """For environments.

    Every call may raise RolloutApiUnavailable and RolloutApiRefused.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float = 60.0,
        give_up_after_s: float = 600.0,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self._settings = Settings(base_url, timeout_s, give_up_after_s, on_wait)
        self._http = httpx.AsyncClient(trust_env=False)
        self._instance = uuid.uuid4().hex
        self._sent = 0

    async def wandb_info(self) -> dict[str, Any]:
        """{"group", "project"}; both None until a trainer has registered."""
        return as_dict(await self._send(call_to("GET", "/wandb_info")))

    async def info(self) -> dict[str, Any]:
        """{"batch_size", "max_token_len"}; both -1 until a trainer has registered."""
        return as_dict(await self._send(call_to("GET", "/info")))

    async def register_env(self, body: RegisterEnv) -> EnvRegistered | None:
        """Join the run. None: the trainer has not started; ask again later."""
        return as_joined(await self._send(call_to("POST", "/register-env", body)))

    async def status_env(self, who: EnvIdentifier) -> EnvStatus:
        """What this environment needs to pace itself.

        Raises:
            UnknownEnv: the id is of another run; register again.
        """
        body = await self._send(call_to("POST", "/status-env", who))
        return EnvStatus.model_validate_json(body)

    async def send_groups(
        self, groups: Sequence[Group], *, run_id: str | None = None
    ) -> dict[str, Any]:
        """Hand over groups; they are durable on return, all or none.

        Each is kept once however often it had to be sent, thanks to its
        ``idempotency_key``, which is made up here where it is missing.

        Raises:
            UnknownEnv: the run is over; register again.
            KeyConflict: a key was used for another group.
            RolloutApiRefused: a group breaks the record; the detail names the field.
        """
        keys = [f"{self._instance}-{self._sent + i}" for i in range(len(groups))]
        self._sent += len(groups)
        compress = not self._settings.local
        call = await asyncio.to_thread(scored_data_list, groups, keys, run_id, compress)
        return as_dict(await self._send(call))

    async def disconnect_env(self, who: EnvIdentifier) -> None:
        """Say goodbye. Best effort: never waits, never raises."""
        await self._try(
            call_to("POST", "/disconnect-env", who, timeout_s=BEST_EFFORT_TIMEOUT_S)
        )

    async def heartbeat(self, beat: Heartbeat) -> None:
        """Say what this process does. Best effort: never waits, never raises."""
        await self._try(call_to("POST", "/heartbeat", beat, timeout_s=BEST_EFFORT_TIMEOUT_S))

    async def close(self) -> None:
        await self._http.aclose()

    async def _try(self, call: Call) -> None:
        try:
            await self._http.request(**self._settings.arguments(call))
        except httpx.TransportError as error:
            log.debug("%s not delivered: %s", call.path, problem_of(error))

    async def _send(self, call: Call) -> bytes:
        patience = self._settings.patience()
        while True:
            try:
                response = await self._http.request(**self._settings.arguments(call))
            except httpx.TransportError as error:
                problem = problem_of(error)
            else:
                if response.status_code < 500:
                    return answer(response)
                problem = f"HTTP {response.status_code} {status_and_detail(response)[1]}"
            await asyncio.sleep(patience.pause_after(problem))
