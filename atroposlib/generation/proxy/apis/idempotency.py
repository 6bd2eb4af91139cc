"""Idempotent calls of a session: a repeated request gets the response of the first request.

    same Idempotency-Key                          -> the same response; 409 for another body
    x-stainless-retry-count > 0, identical body   -> the response of the attempt it repeats
    any further request                           -> sampled anew

Sampling belongs to the session and not to the connection. A client that disconnects loses only
the response, and its retry finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from atroposlib.errors import KeyConflict
from atroposlib.generation.proxy.apis.exchange import SamplingResponse
from atroposlib.wire.numbers import natural_of

KEY_HEADERS = ("idempotency-key", "x-idempotency-key", "x-stainless-idempotency-key")
ATTEMPT_HEADER = "x-stainless-retry-count"  # sent by the openai and anthropic packages


@dataclass(frozen=True)
class CallIdentity:
    """Digest, idempotency key and attempt number of an HTTP request."""

    digest: bytes  # digest of path and body
    key: str | None = None
    attempt: int = 0  # 0: not announced as a retry

    @classmethod
    def of(cls, path: str, body: bytes, headers: Mapping[str, str]) -> CallIdentity:
        return cls(
            digest=blake2b(b"%b\0%b" % (path.encode(), body), digest_size=16).digest(),
            key=next((headers[name] for name in KEY_HEADERS if headers.get(name)), None),
            attempt=natural_of(headers.get(ATTEMPT_HEADER, "")) or 0,
        )


@dataclass(eq=False)
class IdempotentCall:
    """A call, shared by the requests that repeat it."""

    identity: CallIdentity
    response_id: str
    task: asyncio.Task[SamplingResponse]
    attempt: int  # highest attempt number seen
    delivered: bool = False  # the response was written to a client that was still connected

    def mark_delivered(self) -> None:
        self.delivered = True

    @property
    def failed(self) -> bool:
        done = self.task.done()
        return done and (self.task.cancelled() or self.task.exception() is not None)


class IdempotentCalls:
    """The calls of a session. A failed call is dropped, so that a retry samples again."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, list[IdempotentCall]] = {}
        self._by_key: dict[str, IdempotentCall] = {}

    def find_original(self, identity: CallIdentity) -> IdempotentCall | None:
        """Record the attempt; the call that it repeats. Raises KeyConflict: another body."""
        if identity.key is not None:
            call = self._by_key.get(identity.key)
            if call is not None and call.identity.digest != identity.digest:
                raise KeyConflict(
                    "this idempotency key was used with another body; send a fresh key"
                )
        else:
            call = self._find_by_attempt(identity) if identity.attempt else None
        if call is not None:
            call.attempt = max(call.attempt, identity.attempt)
        return call

    def start(
        self,
        identity: CallIdentity,
        response_id: str,
        work: Coroutine[Any, Any, SamplingResponse],
    ) -> IdempotentCall:
        """Run ``work`` as a new call."""
        task = asyncio.create_task(work, name=f"proxy call {response_id}")
        call = IdempotentCall(identity, response_id, task, identity.attempt)
        self._by_digest.setdefault(identity.digest, []).append(call)
        if identity.key is not None:
            self._by_key[identity.key] = call
        task.add_done_callback(lambda _: self._drop_failed(call))
        return call

    @property
    def running(self) -> list[IdempotentCall]:
        return [call for call in self._calls() if not call.task.done()]

    @property
    def undelivered(self) -> frozenset[str]:
        """Ids of complete responses that no client received."""
        return frozenset(
            call.response_id
            for call in self._calls()
            if call.task.done() and not call.delivered
        )

    def finished_call(self, response_id: str) -> IdempotentCall | None:
        calls = (call for call in self._calls() if call.response_id == response_id)
        return next((call for call in calls if call.task.done() and not call.failed), None)

    async def cancel(self) -> None:
        """Cancel the running calls and wait for their end."""
        tasks = [call.task for call in self.running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _calls(self) -> list[IdempotentCall]:
        return [call for calls in self._by_digest.values() for call in calls]

    def _find_by_attempt(self, identity: CallIdentity) -> IdempotentCall | None:
        """The oldest undelivered call with fewer attempts, else the newest with fewer.

        Agents may send equal requests on purpose, and each request has retries. An attempt
        number that a call has seen already therefore belongs to a different call.
        """
        known = self._by_digest.get(identity.digest, ())
        candidates = [call for call in known if call.attempt < identity.attempt]
        undelivered = [call for call in candidates if not call.delivered]
        return undelivered[0] if undelivered else candidates[-1] if candidates else None

    def _drop_failed(self, call: IdempotentCall) -> None:
        if not call.failed:
            return
        self._by_digest[call.identity.digest].remove(call)
        if call.identity.key is not None:
            del self._by_key[call.identity.key]
