"""Who may call the proxy, and what a web page may not.

                          with an admin token            without one
    /setup                the admin token                callers on this machine
    opening, listing      the admin token                anybody
    a session             its API key, or the admin's    anybody who knows its id

Tokens travel in headers only. Host and Sec-Fetch-Site keep out pages of a browser on this
machine, which could otherwise talk to a loopback port like any program.
"""

from __future__ import annotations

import hmac

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse

from atroposlib.errors import Forbidden, InferenceRefused, Unauthorized
from atroposlib.generation.proxy.apis.errors import openai_body
from atroposlib.generation.proxy.session import Session
from atroposlib.utils.http_server import is_address, is_loopback


class Gate:
    """The rules of the table above."""

    def __init__(self, admin_token: str | None) -> None:
        self._admin_token = admin_token

    def require_admin(self, request: HTTPConnection) -> None:
        """For what changes the proxy itself.

        Raises:
            Unauthorized, Forbidden: see the table.
        """
        if self._admin_token is not None:
            self.require_owner(request)
        elif not is_local(request):
            raise Forbidden("only from this machine, or start the proxy with an admin token")

    def require_owner(self, request: HTTPConnection) -> None:
        """For what concerns all sessions."""
        if self._admin_token is not None and not self._is_admin(key_of(request)):
            raise Unauthorized("Authorization: Bearer with the proxy's admin token is needed")

    def require_party(self, request: HTTPConnection, session: Session) -> None:
        """For what concerns one session."""
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
    """The key as OpenAI's clients send it, or as Anthropic's do."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return request.headers.get("x-api-key")


def is_local(request: HTTPConnection) -> bool:
    """From this machine; a caller without an address is in this very process."""
    host = request.client.host if request.client else ""
    return not is_address(host) or is_loopback(host)


async def read_body(request: Request, limit: int) -> bytes:
    """The body, in memory only up to ``limit`` bytes.

    Raises:
        InferenceRefused: 413, 415 for a body that is compressed.
    """
    if request.headers.get("content-encoding", "identity") != "identity":
        raise InferenceRefused(415, "send the body as it is, not compressed")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise InferenceRefused(413, f"a body has at most {limit} bytes")
    return bytes(body)


def refuse_page(status: int, detail: str) -> JSONResponse:
    """The response to a web page of another name or site."""
    return JSONResponse(openai_body(status, detail), status)
