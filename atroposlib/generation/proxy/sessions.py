"""Sessions of a proxy: their servers, opening, lookup, expiry.

open -> calls -> idle for longer than the limit, or closed -> deleted
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import msgspec
from pydantic import ValidationError

from atroposlib.errors import ConfigError, InferenceRefused, Unauthorized, UnknownSession
from atroposlib.generation.chat.template import load_tokenizer
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.proxy import ProxyLimits
from atroposlib.generation.proxy.session import ProxySession, SessionSettings
from atroposlib.generation.routing.calls import sticky_session
from atroposlib.generation.routing.failover import pick_server, token_servers
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.generation.sessions.dummy import DummyManagedServer
from atroposlib.generation.sessions.managed import ManagedServer, managed_over

logger = logging.getLogger(__name__)

DEFAULT_SERVER_TYPE = "vllm"
KEY_PREFIX = "atr_session_"
_KEY_BYTES = 32


class Servers(Protocol):
    """The part of a ``ServerManager`` that is used here."""

    servers: Any  # APIServers, or objects of the original's shape


class Setup(msgspec.Struct, kw_only=True):
    """Model and inference servers: the file of ``--config``, and the body of POST /setup.

    Example: {"model_name": "org/model", "servers": [{"base_url": "http://localhost:9001/v1"}]}
    """

    model_name: str
    servers: list[dict[str, Any]]
    tokenizer_name: str | None = None  # None: that of the model

    @classmethod
    def read(cls, path: Path) -> Setup:
        """The setup in a file. Raises ConfigError if it cannot be read."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise ConfigError(f"--config {path}: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise ConfigError(f"--config {path}: {error}") from error

    def manager(self) -> ServerManager:
        """The servers. Raises ConfigError for an empty list and for invalid settings."""
        if not self.servers:
            raise ConfigError("servers: at least one is needed")
        return ServerManager([self._server(i, entry) for i, entry in enumerate(self.servers)])

    def _server(self, i: int, entry: Mapping[str, Any]) -> APIServerConfig:
        unknown = sorted(set(entry) - set(APIServerConfig.model_fields))
        if unknown:
            logger.warning("servers[%d]: %s: no such settings", i, ", ".join(unknown))
        defaults = {
            "model_name": self.model_name,
            "tokenizer_name": self.tokenizer_name or self.model_name,
            "server_type": DEFAULT_SERVER_TYPE,
        }
        try:
            return APIServerConfig(**{**defaults, **entry})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"servers[{i}].{where}: {first['msg']}") from error

    def tokenizer(self) -> Any:
        """The named tokenizer. Raises ConfigError if there is none of that name."""
        name = self.tokenizer_name or self.model_name
        return load_tokenizer(APIServerConfig(model_name=self.model_name, tokenizer_name=name))


class Sessions:
    """Opens, finds, expires and closes sessions."""

    def __init__(
        self, manager: Servers, tokenizer: Any, model_name: str, limits: ProxyLimits
    ) -> None:
        self.manager = manager
        self.tokenizer = tokenizer
        self.model_name = model_name
        self.limits = limits
        self._sessions: dict[str, ProxySession] = {}
        self._by_key: dict[str, ProxySession] = {}
        # By session id: its server, and what to call when the session ends.
        self._assigned: dict[str, tuple[Any, Callable[[], None]]] = {}
        self._opening = 0
        self._owned: list[Any] = []  # managers made by replace_servers, closed here

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def all(self) -> list[ProxySession]:
        return list(self._sessions.values())

    async def open(
        self,
        settings: SessionSettings,
        base_url: str | None = None,
        server: APIServer | None = None,
    ) -> ProxySession:
        """Open a session on ``server``, else at ``base_url``, else on the freest healthy server.

        Raises InferenceRefused (404 unknown server, 429 too many sessions) or ConfigError.
        """
        await self.expire()
        if len(self._sessions) + self._opening >= self.limits.max_sessions:
            raise InferenceRefused(
                429, f"{self.limits.max_sessions} sessions are open: close finished ones"
            )
        self._opening += 1
        try:
            assigned, managed, release = await assign_server(
                self.manager.servers if server is None else [server],
                base_url,
                settings,
                self.tokenizer,
                getattr(self.manager, "max_n_completions", 8),
            )
        finally:
            self._opening -= 1
        session = ProxySession(
            uuid=str(uuid.uuid4()),
            api_key=KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES),
            model_name=self.model_name,
            base_url=base_url_of(assigned),
            managed=managed,
            settings=settings,
        )
        self._sessions[session.uuid] = session
        self._by_key[session.api_key] = session
        self._assigned[session.uuid] = (assigned, release)
        return session

    def find(self, session_id: str) -> ProxySession:
        """The open session of this id. Raises UnknownSession."""
        session = self._sessions.get(session_id)
        if session is None:
            raise UnknownSession(
                f"no session {session_id[:64]}: it was never opened, or has ended"
            )
        session.touch()
        return session

    def of_key(self, api_key: str | None) -> ProxySession:
        """The open session of an API key. Raises Unauthorized."""
        session = self._by_key.get(api_key or "")
        if session is None:
            raise Unauthorized(
                "the API key names no open session: POST /sessions/create gives one, or use "
                "the session's own base_url"
            )
        session.touch()
        return session

    async def close(self, session: ProxySession) -> None:
        """Cancel the session's calls and delete it."""
        if self._sessions.pop(session.uuid, None) is None:
            return
        del self._by_key[session.api_key]
        await session.reset()
        _, release = self._assigned.pop(session.uuid)
        release()
        await self._close_unused()

    async def expire(self, now: float | None = None) -> int:
        """Close idle sessions and return their number. ``now``: seconds since 1970."""
        oldest = (time.time() if now is None else now) - self.limits.idle_s
        idle = [
            session
            for session in self._sessions.values()
            if session.last_accessed < oldest and not session.calls.running
        ]
        for session in idle:
            await self.close(session)
        return len(idle)

    async def expire_forever(self) -> None:
        """Expire every tenth of the idle limit until cancelled."""
        while True:
            await asyncio.sleep(max(1.0, self.limits.idle_s / 10))
            await self.expire()

    async def replace_servers(self, manager: Any, model_name: str, tokenizer: Any) -> None:
        """Assign new sessions to ``manager``; open sessions keep their server."""
        self.manager, self.model_name, self.tokenizer = manager, model_name, tokenizer
        self._owned.append(manager)
        await self._close_unused()

    async def shut_down(self) -> None:
        """Close every session and every manager made by ``replace_servers``."""
        for session in self.all:
            await self.close(session)
        for manager in self._owned:
            await manager.close()

    async def _close_unused(self) -> None:
        """Close replaced managers once no session samples from their servers."""
        used = [server for server, _ in self._assigned.values()]
        for manager in [m for m in self._owned if m is not self.manager]:
            if not any(server in used for server in manager.servers):
                self._owned.remove(manager)
                await manager.close()


# --- assignment of servers ------------------------------------------------------------


async def assign_server(
    servers: Sequence[Any],
    base_url: str | None,
    settings: SessionSettings,
    tokenizer: Any,
    largest_n: int,
) -> tuple[Any, ManagedServer | DummyManagedServer, Callable[[], None]]:
    """The server at ``base_url``, else the freest healthy server; its session; how to end both.

    With an ``APIServer`` a session fails over when its server fails, unless ``base_url`` named
    it. Raises InferenceRefused (404), or ConfigError for the tool parser.
    """
    candidates = [_server_at(servers, base_url)] if base_url else token_servers(servers)
    if not candidates:
        raise InferenceRefused(404, "there is no server yet: POST /setup names some")
    chosen = pick_server(candidates, settings.split)
    with ExitStack() as held:
        calls = held.enter_context(sticky_session(candidates, chosen, largest_n))
        # A tool parser loads the tokenizer, which takes seconds: not on the event loop.
        managed = await asyncio.to_thread(
            managed_over,
            calls,
            tokenizer,
            settings.track_tree,
            settings.tool_parser,
            settings.preserve_think_blocks,
        )
        return chosen, managed, held.pop_all().close


def base_url_of(server: Any) -> str | None:
    """``base_url`` of the server's config; None where a stand-in of a test has none."""
    address = getattr(server.config, "base_url", None)
    return None if address is None else str(address)


def _server_at(servers: Sequence[Any], base_url: str) -> Any:
    for server in servers:
        if (base_url_of(server) or "").rstrip("/") == base_url.rstrip("/"):
            return server
    known = ", ".join(str(base_url_of(server)) for server in servers)
    raise InferenceRefused(404, f"no server at {base_url}; the servers are {known}")
