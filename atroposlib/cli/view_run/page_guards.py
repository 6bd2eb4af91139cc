"""Guards before the page: names of the host, other sites, tokens, and a content policy."""

from __future__ import annotations

import base64
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from atroposlib.api.guards.tokens import Scope, TokenFile
from atroposlib.errors import AccessError, Forbidden
from atroposlib.utils.http_server import LOOPBACK_HOSTS, PageGuard

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
        "connect-src 'self'; frame-ancestors 'none'; form-action 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
# Of Gradio's routes those that take files, or fetch from other machines.
CLOSED = ("/gradio_api/upload", "/gradio_api/proxy=")


class PageGuards:
    """ASGI middleware around the page.

    A browser asks for the token itself (HTTP Basic, any user name) and sends it in a header, so
    it stands in no address and no log; programs send it as Bearer. With tokens any host name is
    allowed: a web page that rebinds its name has none.

    Args:
        tokens: file of which a token is needed; None: no token.
        take: the token is one of a trainer, as the page takes batches.
    """

    def __init__(self, app: ASGIApp, tokens: Path | None, take: bool) -> None:
        self._page = app
        self._tokens = None if tokens is None else TokenFile(tokens)
        self._scope = Scope.TRAINER if take else Scope.READ
        hosts = LOOPBACK_HOSTS if tokens is None else None
        self._guarded = PageGuard(self._check, _refuse, hosts)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._guarded(scope, receive, with_headers)

    async def _check(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        app = self._page
        if scope["type"] == "http":
            try:
                if self._tokens is not None:
                    caller = self._tokens.identify(token_of(Headers(scope=scope)))
                    if self._scope not in caller.scopes:
                        raise Forbidden(f"needs a token of the scope {self._scope.value}")
                if scope["path"].startswith(CLOSED):
                    app = _refuse(404, "not served here")
            except AccessError as error:
                app = _refuse(401, str(error))
        await app(scope, receive, send)


def token_of(headers: Headers) -> str:
    """The token of an Authorization header: Bearer, or the password of Basic; "" without one."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except ValueError:
            return ""
    return value if kind.lower() == "bearer" else ""


def _refuse(status: int, detail: str) -> Response:
    challenge = {"www-authenticate": 'Basic realm="token of the rollout API"'}
    return JSONResponse({"detail": detail}, status, challenge if status == 401 else None)
