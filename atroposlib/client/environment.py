"""Asynchronous client of the rollout API, for environments."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

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
    seconds_asked,
)
from atroposlib.client.groups import (
    RUN_ID_HEADER,
    Group,
    Sent,
    as_frames,
    as_json,
    read_processed,
    read_received,
)
from atroposlib.errors import RolloutApiRefused
from atroposlib.wire import ids
from atroposlib.wire.status import (
    AccountReport,
)

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)
T = TypeVar("T")
_NO_SUCH_ROUTE = (404, 405)


class AsyncRolloutClient:
    """Client of environments; asynchronous.

    Every call may raise RolloutApiUnavailable, RolloutApiRefused, and, where the API asks
    for tokens, Unauthorized and Forbidden. UnknownEnv means that the run was replaced:
    register again.

    Args:
        binary: send groups as arrays instead of JSON, which takes a small part of the bytes
            and of the work of the API. The trainer gets the same groups.
        on_continue: called when no call waits any more.
        token: of scope env; ATROPOS_API_TOKEN if None.
        transport, timing: replace sockets, clock and jitter, for tests.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float = 60.0,
        give_up_after_s: float = GIVE_UP_AFTER_S,
        on_wait: Callable[[str], None] | None = None,
        on_continue: Callable[[], None] = lambda: None,
        binary: bool = False,
        token: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        timing: Timing | None = None,
    ) -> None:
        import httpx

        self._settings = ConnectionSettings(
            base_url, timeout_s, give_up_after_s, on_wait, token, timing, on_continue
        )
        transport = transport or httpx.AsyncHTTPTransport(**self._settings.transport())
        self._http = httpx.AsyncClient(trust_env=False, transport=transport)
        self._binary = binary
        self._takes_groups = True  # False after a 404 of POST /groups
        self._takes_posted_status = True  # False after a 404: an API of the original
        self.register_after_s = (
            0.0  # the pause that the API asked for at the last register_env
        )
        self._instance = ids.source().hex
        self._join_id = ids.source().hex  # id of the next environment
        self._sent = 0

    # --- the run ------------------------------------------------------------------

    async def wandb_info(self) -> dict[str, Any]:
        """{"group", "project"}; both None until a trainer has registered."""
        return await self._send(ApiCall("GET", "/wandb_info", mapping))

    async def info(self) -> dict[str, Any]:
        """{"batch_size", "max_token_len"}; both -1 until a trainer has registered."""
        return await self._send(ApiCall("GET", "/info", mapping))

    async def status(self) -> wire.RunStatus:
        """State of the run and what it waits for."""
        return await self._send(ApiCall("GET", "/status", model(wire.RunStatus)))

    async def register_env(self, body: wire.RegisterEnv) -> wire.EnvRegistered | None:
        """Join the run. None: the trainer has not started; repeat it after ``register_after_s``."""
        named = body if body.join_id else body.model_copy(update={"join_id": self._join_id})
        return await self._send(post("/register-env", named, self._registration))

    def _registration(self, response: httpx.Response) -> wire.EnvRegistered | None:
        self.register_after_s = seconds_asked(response)
        if "env_id" not in mapping(response):
            return None
        registered = model(wire.EnvRegistered)(response)
        self._join_id = ids.source().hex
        return registered

    async def status_env(self, who: wire.EnvIdentifier) -> wire.EnvStatus:
        """The status by which this environment sets its pace.

        Raises:
            UnknownEnv: the id is of another run; register again.
        """
        if self._takes_posted_status:
            try:
                return await self._send(post("/status-env", who, model(wire.EnvStatus)))
            except RolloutApiRefused as refusal:
                if refusal.status_code not in _NO_SUCH_ROUTE:
                    raise
                log.info("%s has no POST /status-env: using GET", self._settings.url)
                self._takes_posted_status = False
        body = who.model_dump_json(include={"env_id"}).encode()  # the form of the original
        return await self._send(
            ApiCall("GET", "/status-env", model(wire.EnvStatus), body, JSON_BODY)
        )

    async def disconnect_env(self, who: wire.EnvIdentifier) -> None:
        """Disconnect from the run. Best effort: never waits, never raises."""
        await self._try(post("/disconnect-env", who, nothing, BEST_EFFORT_TIMEOUT_S))

    async def heartbeat(self, beat: wire.Heartbeat) -> None:
        """Send a heartbeat. Best effort: never waits, never raises."""
        await self._try(heartbeat(beat))

    async def servers(self) -> wire.ServerDirectory | None:
        """The announced inference servers. None: no answer now; never waits."""
        call = list_servers()
        answer = await self._answer(call)
        return None if answer is None else call.read(answer)

    # --- groups -------------------------------------------------------------------

    async def send_groups(self, groups: Sequence[Group], *, run_id: str | None = None) -> Sent:
        """Send groups; all or none are durable on return.

        Each is stored once, regardless of retries, by its ``idempotency_key``, which is
        generated here if it is missing. While the queue is full this waits as long as the API
        requests, within ``give_up_after_s``, and reports it to ``on_wait``.

        Raises:
            UnknownEnv: the run is over; register again.
            KeyConflict: a key was used for another group.
            RolloutApiRefused: a group breaks the record; the detail names the field.
        """
        keys = [f"{self._instance}-{self._sent + i}" for i in range(len(groups))]
        self._sent += len(groups)
        headers = {} if run_id is None else {RUN_ID_HEADER: run_id}
        compress = not self._settings.local
        if self._takes_groups:
            pack = as_frames if self._binary else as_json
            body = await asyncio.to_thread(partial(pack, groups, keys, compress=compress))
            call = ApiCall(
                "POST", "/groups", read_received, body.content, headers | body.headers
            )
            try:
                return await self._send(call)
            except RolloutApiRefused as refusal:
                if refusal.status_code not in _NO_SUCH_ROUTE:
                    raise
                log.info("%s has no POST /groups: using its older form", self._settings.url)
                self._takes_groups = False
        body = await asyncio.to_thread(partial(as_json, groups, keys, compress=compress))
        more = headers | body.headers
        old = ApiCall("POST", "/scored_data_list", read_processed, body.content, more)
        return await self._send(old)

    async def request_admission(
        self,
        who: wire.EnvIdentifier,
        sequences: int,
        *,
        ttl_s: float = 600.0,
        admission_id: str | None = None,
    ) -> wire.AdmissionReply:
        """How many of ``sequences`` may begin without becoming too stale to train on.

        Args:
            ttl_s: time (s) after which the admission expires.
            admission_id: of an earlier request, to extend it.

        Raises:
            UnknownEnv: the run is over; register again.
            RolloutApiRefused: with status code 404 by an API without admission control.
        """
        request = wire.AdmissionRequest(
            **who.model_dump(),
            sequences=sequences,
            ttl_s=ttl_s,
            admission_id=admission_id or ids.source().hex,  # repeated requests count once
        )
        return await self._send(post("/admission", request, model(wire.AdmissionReply)))

    async def release_admission(self, admission_id: str) -> None:
        """End an admission. Best effort: an admission that is not released expires."""
        body = wire.AdmissionRelease(admission_id=admission_id)
        await self._try(post("/admission/release", body, nothing, BEST_EFFORT_TIMEOUT_S))

    async def report_step(self, report: wire.StepReport) -> bool:
        """Report the numbers of a step. Best effort: True if they arrived."""
        return await self._try(post("/steps", report, nothing, BEST_EFFORT_TIMEOUT_S))

    async def report_account(self, report: AccountReport) -> bool:
        """Report the counters of tokens. Best effort: True if they are durable."""
        return await self._try(post("/account", report, nothing, BEST_EFFORT_TIMEOUT_S))

    async def report_drops(self, report: wire.DropReport, sample: bytes = b"") -> bool:
        """Report dropped groups, with a sample group in binary form. Best effort."""
        query = urlencode(report.model_dump(exclude_none=True))
        headers = {"content-type": "application/x-safetensors"} if sample else {}
        call = ApiCall(
            "POST", f"/drops?{query}", nothing, sample, headers, BEST_EFFORT_TIMEOUT_S
        )
        return await self._try(call)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncRolloutClient:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    # --- sending --------------------------------------------------------------------

    async def _try(self, call: ApiCall[None]) -> bool:
        return await self._answer(call) is not None

    async def _answer(self, call: ApiCall[Any]) -> httpx.Response | None:
        """Successful answer to a single request, or None."""
        import httpx

        try:
            answer = await self._request(call)
        except httpx.RequestError as error:
            log.debug("%s not delivered: %s", call.path, connection_problem(error))
            self._settings.look_again()
            return None
        return answer if answer.is_success else None

    async def _send(self, call: ApiCall[T]) -> T:
        began = self._settings.timing.clock()
        answer = await self._answer_to(call)
        if not isinstance(answer, RetryLater):
            return answer
        with RetryPolicy(self._settings, began) as policy:
            while isinstance(answer, RetryLater):
                await asyncio.sleep(policy.pause_after(answer))
                answer = await self._answer_to(call)
        return answer

    async def _answer_to(self, call: ApiCall[T]) -> T | RetryLater:
        import httpx

        try:
            return interpret(call, await self._request(call))
        except httpx.RequestError as error:
            return RetryLater(connection_problem(error))

    async def _request(self, call: ApiCall[T]) -> httpx.Response:
        return await self._http.request(**self._settings.arguments(call))
