"""Access rules of the proxy: admin token, session keys, bounded bodies.

                          with an admin token            without a token
    /setup                the admin token                callers on this machine
    opening, listing      the admin token                any caller
    a session             its API key, or the admin's    any caller that has its id

Tokens travel in headers only. The checks of the gate refuse web pages in a browser on this
machine, which could otherwise call a loopback port like any program.
"""

from __future__ import annotations

import hmac

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse

from atroposlib.errors import Forbidden, InferenceRefused, Unauthorized
from atroposlib.generation.proxy.apis.agent_api import openai_body
from atroposlib.generation.proxy.session import ProxySession
from atroposlib.utils.http.sockets import address_of, is_loopback


class ProxyAuth:
    """Checks callers by the rules of the table above."""

    def __init__(self, admin_token: str | None) -> None:
        self._admin_token = admin_token

    def require_setup_access(self, request: HTTPConnection) -> None:
        """Check access to the proxy's configuration. Raises Unauthorized or Forbidden."""
        if self._admin_token is not None:
            self.require_admin_token(request)
        elif not is_local(request):
            raise Forbidden("only from this machine, or start the proxy with an admin token")

    def require_admin_token(self, request: HTTPConnection) -> None:
        """Check access to all sessions. Raises Unauthorized."""
        if self._admin_token is not None and not self._is_admin(key_of(request)):
            raise Unauthorized("Authorization: Bearer with the proxy's admin token is needed")

    def require_session_access(self, request: HTTPConnection, session: ProxySession) -> None:
        """Check access to a session. Raises Unauthorized."""
        if self._admin_token is None:
            return
        key = key_of(request) or ""
        if not hmac.compare_digest(key.encode(), session.api_key.encode()):
            if not self._is_admin(key):
                raise Unauthorized("the API key of this session is needed")

    def _is_admin(self, key: str | None) -> bool:
        assert self._admin_token is not None
        return hmac.compare_digest((key or "").encode(), self._admin_token.encode())


def key_of(request: HTTPConnection) -> str | None:
    """API key in the header of OpenAI's clients, else of Anthropic's."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return request.headers.get("x-api-key")


def is_local(request: HTTPConnection) -> bool:
    """Whether the caller is on this machine; a caller without an address is in this process."""
    host = request.client.host if request.client else ""
    return address_of(host) is None or is_loopback(host)


async def read_body(request: Request, limit: int) -> bytes:
    """Read the body. Raises InferenceRefused: 413 beyond ``limit`` bytes, 415 compressed."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise InferenceRefused(415, "compressed bodies are not accepted")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise InferenceRefused(413, f"a body has at most {limit} bytes")
    return bytes(body)


def refuse_page(status: int, detail: str) -> JSONResponse:
    """Response to a web page of another host name or site."""
    return JSONResponse(openai_body(status, detail), status)
