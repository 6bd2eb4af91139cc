"""Sessions and servers with given replies, and time limits that also end a blocked event loop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

from atroposlib.envs.function_env.card import Replies, ScriptedSession
from atroposlib.errors import ConfigError, InferenceUnavailable

MOST_CALLS = 200  # limit of a rollout
GAP_S = 0.01  # between two looks at the event loop


class Hanging(BaseException):
    """A rollout blocks the event loop; no ``except Exception`` of an environment catches it."""


class RecordingSession(ScriptedSession):
    """Scripted session that keeps its requests, and may wait or fail at a given call.

    Args:
        hold_at: index of the call that is never answered; ``held`` is set when it waits.
        fail_at: index of the first call that fails like a call to an absent server.
    """

    def __init__(
        self, replies: Replies, *, hold_at: int | None = None, fail_at: int | None = None
    ) -> None:
        super().__init__(replies)
        self._replies = replies
        self.requests: list[list[dict[str, Any]]] = []
        self.tools: list[dict[str, Any]] = []
        self.held = asyncio.Event()
        self._hold_at, self._fail_at = hold_at, fail_at

    async def chat_completion(self, *, tools: Sequence[Any] = (), **sent: Any) -> Any:
        number = len(self.requests)
        messages = sent.get("messages") or [
            {"role": "user", "content": sent.get("prompt", "")}
        ]
        self.requests.append([dict(message) for message in messages])
        self.tools = [*tools] or self.tools
        if number >= MOST_CALLS:
            raise ConfigError(f"over {MOST_CALLS} calls of the model in one rollout")
        if self._fail_at is not None and number >= self._fail_at:  # a client may retry
            raise InferenceUnavailable("the server of the model is absent")
        if number == self._hold_at:
            self.held.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)  # like a real call, lets other rollouts run
        return await super().chat_completion(tools=tools, **sent)

    completion = chat_completion

    def again(self) -> RecordingSession:
        """A new session with the script of this session, from its beginning."""
        return RecordingSession(self._replies, hold_at=self._hold_at, fail_at=self._fail_at)


class ScriptedServer:
    """Server manager of an environment whose rollouts all have their own session."""

    tool_parser: str | None = None

    def __init__(self) -> None:
        config = SimpleNamespace(model_name="scripted", base_url="scripted")
        self.servers = [SimpleNamespace(returns_tokens=False, config=config)]

    async def close(self) -> None:
        """Do nothing: there are no connections."""


@contextmanager
def interrupted_after(limit_s: float) -> Iterator[None]:
    """Raise :class:`Hanging` in the main thread after ``limit_s``, where signals allow it."""
    usable = hasattr(signal, "setitimer")
    if not usable or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise Hanging(f"blocks the event loop for over {limit_s:.0f} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@asynccontextmanager
async def longest_gap() -> AsyncIterator[list[float]]:
    """The longest time for which the event loop ran nothing else, in a list of a single number."""
    loop, longest = asyncio.get_running_loop(), [0.0]

    async def look() -> None:
        last = loop.time()
        while True:
            await asyncio.sleep(GAP_S)
            now = loop.time()
            longest[0], last = max(longest[0], now - last - GAP_S), now

    task = asyncio.create_task(look())
    await asyncio.sleep(0)
    try:
        yield longest
        await asyncio.sleep(GAP_S)  # a last look after the end
    finally:
        task.cancel()
