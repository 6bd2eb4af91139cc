"""All sessions of one proxy, and the servers they sample from.

open -> calls -> (idle for longer than the limit, or closed) -> gone
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from dataclasses import dataclass
from typing import Any

from atroposlib.errors import InferenceRefused, Unauthorized, UnknownSession
from atroposlib.generation.proxy.placement import (
    Placement,
    Servers,
    address_of,
    place,
)
from atroposlib.generation.proxy.session import Session, Settings

KEY_PREFIX = "atr_session_"
_KEY_BYTES = 32


@dataclass(frozen=True)
class Limits:
    """How many sessions there may be, and for how long one may be left alone."""

    max_sessions: int = 4096
    idle_s: float = 3600.0
    max_body_bytes: int = 64 * 2**20
    keep_alive_s: float = 5.0  # between signs of life of a stream that waits for its answer


class Sessions:
    """Opens, finds, expires and closes sessions."""

    def __init__(
        self, manager: Servers, tokenizer: Any, model_name: str, limits: Limits
    ) -> None:
        self.manager = manager
        self.tokenizer = tokenizer
        self.model_name = model_name
        self.limits = limits
        self._sessions: dict[str, Session] = {}
        self._of_key: dict[str, Session] = {}
        self._place_of: dict[str, Placement] = {}
        self._opening = 0
        self._ours: list[Any] = []  # managers made here, to be closed here

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def all(self) -> list[Session]:
        return list(self._sessions.values())

    async def open(self, settings: Settings, base_url: str | None = None) -> Session:
        """A new session on the server at ``base_url``, else on the freest healthy one.

        Raises:
            InferenceRefused: 404 for an unknown ``base_url``, 429 for too many sessions.
            ConfigError: there is no such tool parser.
        """
        await self.expire()
        if len(self._sessions) + self._opening >= self.limits.max_sessions:
            raise InferenceRefused(
                429, f"{self.limits.max_sessions} sessions are open: delete what is finished"
            )
        self._opening += 1
        try:
            placement = await place(self.manager, base_url, settings, self.tokenizer)
        finally:
            self._opening -= 1
        session = Session(
            uuid=str(uuid.uuid4()),
            api_key=KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES),
            model_name=self.model_name,
            base_url=address_of(placement.server),
            managed=placement.managed,
            settings=settings,
        )
        self._sessions[session.uuid] = session
        self._of_key[session.api_key] = session
        self._place_of[session.uuid] = placement
        return session

    def find(self, session_id: str) -> Session:
        """
        Raises:
            UnknownSession: there is none, or not any more.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise UnknownSession(
                f"no session {session_id[:64]}: it was never opened, or has ended"
            )
        session.touch()
        return session

    def of_key(self, api_key: str | None) -> Session:
        """The session that an API key stands for.

        Raises:
            Unauthorized: it stands for none.
        """
        session = self._of_key.get(api_key or "")
        if session is None:
            raise Unauthorized(
                "the API key names no open session: POST /sessions/create gives one, or use "
                "the session's own base_url"
            )
        session.touch()
        return session

    async def close(self, session: Session) -> None:
        """Cancel what it still samples and forget it."""
        if self._sessions.pop(session.uuid, None) is None:
            return
        del self._of_key[session.api_key]
        await session.reset()
        self._place_of.pop(session.uuid).leave()
        await self._close_unused()

    async def expire(self, now: float | None = None) -> int:
        """Close sessions that were left alone; how many. ``now``: seconds since 1970."""
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
        """Expire at a tenth of the limit's pace, until cancelled."""
        while True:
            await asyncio.sleep(max(1.0, self.limits.idle_s / 10))
            await self.expire()

    async def replace_servers(self, manager: Any, model_name: str, tokenizer: Any) -> None:
        """New sessions go to ``manager``; open ones stay where they are."""
        self.manager, self.model_name, self.tokenizer = manager, model_name, tokenizer
        self._ours.append(manager)
        await self._close_unused()

    async def shut_down(self) -> None:
        """Close every session, and the managers that were made here."""
        for session in self.all:
            await self.close(session)
        for manager in self._ours:
            await manager.close()

    async def _close_unused(self) -> None:
        """Connections of servers that were replaced, once nobody samples there any more."""
        used = [placement.server for placement in self._place_of.values()]
        for manager in [m for m in self._ours if m is not self.manager]:
            if not any(server in used for server in manager.servers):
                self._ours.remove(manager)
                await manager.close()
