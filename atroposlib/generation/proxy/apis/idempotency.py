"""Calls of a session, so that one that comes again gets the answer of the first time.

    same Idempotency-Key                          -> the same answer, or 409 for other content
    x-stainless-retry-count > 0, identical body   -> the answer of the attempt it repeats
    anything else                                 -> sampled anew

The sampling belongs to the session and not to the connection: a client that hangs up loses
only the answer, and finds it when it tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from atroposlib.errors import KeyConflict
from atroposlib.generation.proxy.apis.request import Answer

KEY_HEADERS = ("idempotency-key", "x-idempotency-key", "x-stainless-idempotency-key")
ATTEMPT_HEADER = "x-stainless-retry-count"  # sent by the openai and anthropic packages


@dataclass(frozen=True)
class Request:
    """What tells one call from another."""

    digest: bytes  # of path and body
    key: str | None = None
    attempt: int = 0  # 0: not announced as a retry

    @classmethod
    def of(cls, path: str, body: bytes, headers: Mapping[str, str]) -> Request:
        count = headers.get(ATTEMPT_HEADER, "")
        return cls(
            digest=blake2b(b"%b\0%b" % (path.encode(), body), digest_size=16).digest(),
            key=next((headers[name] for name in KEY_HEADERS if headers.get(name)), None),
            attempt=int(count) if count.isdecimal() else 0,
        )


@dataclass(eq=False)
class Call:
    """One call and whoever waits for it."""

    request: Request
    answer_id: str
    task: asyncio.Task[Answer]
    attempt: int  # the last one seen
    heard: bool = False  # the answer was written to a client that was still there

    @property
    def failed(self) -> bool:
        done = self.task.done()
        return done and (self.task.cancelled() or self.task.exception() is not None)


class CallBook:
    """The calls of one session. A call that failed is forgotten: a retry samples again."""

    def __init__(self) -> None:
        self._of_digest: dict[bytes, list[Call]] = {}
        self._of_key: dict[str, Call] = {}

    def earlier(self, request: Request) -> Call | None:
        """The call that this request repeats, now with its attempt noted.

        Raises:
            KeyConflict: the key came before with another body.
        """
        if request.key is not None:
            call = self._of_key.get(request.key)
            if call is not None and call.request.digest != request.digest:
                raise KeyConflict(
                    "this idempotency key came before with other content; use a fresh one"
                )
        else:
            call = self._repeated(request) if request.attempt else None
        if call is not None:
            call.attempt = max(call.attempt, request.attempt)
        return call

    def start(
        self, request: Request, answer_id: str, work: Coroutine[Any, Any, Answer]
    ) -> Call:
        """Run ``work`` as a new call."""
        task = asyncio.create_task(work, name=f"proxy call {answer_id}")
        call = Call(request, answer_id, task, request.attempt)
        self._of_digest.setdefault(request.digest, []).append(call)
        if request.key is not None:
            self._of_key[request.key] = call
        task.add_done_callback(lambda _: self._forget_failed(call))
        return call

    @property
    def running(self) -> list[Call]:
        return [call for call in self._calls() if not call.task.done()]

    @property
    def unheard(self) -> frozenset[str]:
        """Answers that never reached anybody."""
        return frozenset(
            call.answer_id for call in self._calls() if call.task.done() and not call.heard
        )

    def answered(self, answer_id: str) -> Call | None:
        """The finished call with this answer."""
        found = (call for call in self._calls() if call.answer_id == answer_id)
        return next((call for call in found if call.task.done() and not call.failed), None)

    async def cancel(self) -> None:
        """Stop what still runs, and wait until it has."""
        tasks = [call.task for call in self.running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _calls(self) -> list[Call]:
        return [call for calls in self._of_digest.values() for call in calls]

    def _repeated(self, request: Request) -> Call | None:
        """Agents may ask the same thing twice on purpose, each with retries of its own: an
        attempt repeats the oldest unanswered call that has not seen it, else the newest.
        """
        known = self._of_digest.get(request.digest, ())
        fitting = [call for call in known if call.attempt < request.attempt]
        unheard = [call for call in fitting if not call.heard]
        return unheard[0] if unheard else fitting[-1] if fitting else None

    def _forget_failed(self, call: Call) -> None:
        if not call.failed:
            return
        self._of_digest[call.request.digest].remove(call)
        if call.request.key is not None:
            del self._of_key[call.request.key]
