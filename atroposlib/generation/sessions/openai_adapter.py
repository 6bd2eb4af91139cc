"""The face of an ``openai.AsyncOpenAI`` client over a managed session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol


class ManagedCalls(Protocol):
    """The two calls that the adapter forwards."""

    async def chat_completion(self, **kwargs: Any) -> Any: ...

    async def completion(self, **kwargs: Any) -> Any: ...


class _Create:
    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    async def create(self, **kwargs: Any) -> Any:
        return await self._call(**kwargs)


class _Chat:
    def __init__(self, completions: _Create) -> None:
        self.completions = completions


class ManagedServerAdapter:
    """Lets code written for an OpenAI client sample through a managed session.

    ``chat.completions.create(...)`` and ``completions.create(...)`` work; a client's raw
    ``post`` and ``copy`` would bypass the session and are refused.
    """

    def __init__(self, managed: ManagedCalls, base_url: str) -> None:
        self.managed = managed
        self.base_url = base_url
        self.chat = _Chat(_Create(managed.chat_completion))
        self.completions = _Create(managed.completion)

    def post(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("post() would bypass the managed session")

    def copy(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("copy() would bypass the managed session")
