"""The servers of a teacher, at addresses of which some are in files that are read again.

A server that a cluster starts anew on another node writes its new address into the file.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from atroposlib.envs.settings.teacher import TeacherSettings
from atroposlib.errors import InferenceUnavailable
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.routing.manager import ServerManager

T = TypeVar("T")
ADDRESS_LOOK_S = 2.0  # between two looks for another address in a file


class TeacherServers:
    """Connections to the servers of a teacher, renewed when an address in a file changes."""

    def __init__(self, settings: TeacherSettings) -> None:
        self._settings = settings
        self._at: list[str] = []
        self._managers: list[ServerManager] = []  # the last is at ``_at``

    def at_current_addresses(self) -> ServerManager:
        """The servers at their present addresses; raises as :func:`current_addresses`."""
        at = current_addresses(self._settings.urls)
        if at != self._at:
            self._managers.append(ServerManager([_config(self._settings, url) for url in at]))
            self._at = at
        return self._managers[-1]

    def now(self) -> ServerManager:
        """The servers at the addresses that were last read."""
        return self._managers[-1]

    async def unless_moved(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of ``call``, which ends early when a server has another address.

        Raises InferenceUnavailable: it ended early, or no server answered.
        """
        if not any(map(is_file_address, self._settings.urls)):
            return await call()
        attempt = asyncio.ensure_future(call())
        moved = asyncio.ensure_future(self._until_moved())
        try:
            await asyncio.wait({attempt, moved}, return_when=asyncio.FIRST_COMPLETED)
            if attempt.done():
                return attempt.result()
            raise InferenceUnavailable(f"the server has moved to {' '.join(self._at)}")
        finally:
            attempt.cancel()
            moved.cancel()
            await asyncio.gather(attempt, moved, return_exceptions=True)

    async def _until_moved(self) -> None:
        """Return when a file holds another address than at the call."""
        at = self._at
        while not at or at == self._at:
            await asyncio.sleep(ADDRESS_LOOK_S)
            at = at or self._at  # empty before the first connection
            with suppress(InferenceUnavailable):
                self.at_current_addresses()

    async def close(self) -> None:
        """Close every connection; call once, at the end."""
        for manager in self._managers:
            await manager.close()


def is_file_address(url: str) -> bool:
    """Whether an address is ``file:///path`` of a file that holds it."""
    return urlsplit(url).scheme == "file"


def current_addresses(urls: Sequence[str]) -> list[str]:
    """The addresses of servers at this moment.

    Raises InferenceUnavailable: a file is absent or empty; its server has not started yet.
    """
    return [_address_in(url) if is_file_address(url) else url for url in urls]


def _address_in(url: str) -> str:
    try:
        text = Path(unquote(urlsplit(url).path)).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InferenceUnavailable(f"no address in {url}: {error}") from error
    if not text:
        raise InferenceUnavailable(f"no address in {url}: the file is empty")
    return f"{text.removesuffix('/v1')}/v1"


def _config(settings: TeacherSettings, url: str) -> APIServerConfig:
    return APIServerConfig(
        base_url=url,
        model_name=settings.model,
        server_type=settings.server_type,
        tokenizer_name=settings.tokenizer or "none",
        timeout=math.ceil(settings.timeout_s),
        num_max_requests_at_once=settings.requests_at_once,
        api_key=settings.api_key.get_secret_value(),
    )
