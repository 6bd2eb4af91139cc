"""Gate before the page: names of the host, foreign sites, tokens, and a content policy."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from atroposlib.api.guards.tokens import Scope, TokenFile
from atroposlib.errors import AccessError, Forbidden
from atroposlib.utils.http.gate import Check, Gate, RequestFacts
from atroposlib.utils.http.sockets import LOOPBACK_HOSTS
from atroposlib.utils.http.web_pages import page_checks

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
        "connect-src 'self'; frame-ancestors 'none'; form-action 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
# Routes of Gradio that take files, or fetch from remote machines.
CLOSED = ("/gradio_api/upload", "/gradio_api/proxy=")


def page_gate(app: ASGIApp, tokens: Path | None, take: bool) -> Gate:
    """The gate before the page.

    A browser asks for the token (HTTP Basic, any user name) and sends it in a header, so
    it appears in no address and no log; programs send it as Bearer. With tokens any host name is
    allowed: a web page that rebinds its name has none.

    Args:
        tokens: file of which a token is needed; None: no token.
        take: require a token of scope trainer, as the page takes batches.
    """
    hosts = LOOPBACK_HOSTS if tokens is None else None
    checks = [*page_checks(_refuse, hosts), _closed_check]
    if tokens is not None:
        checks.insert(
            2, _token_check(TokenFile(tokens), Scope.TRAINER if take else Scope.READ)
        )
    return Gate(app, checks, headers=lambda: HEADERS)


def _token_check(tokens: TokenFile, needed: Scope) -> Check:
    def check(facts: RequestFacts) -> Response | None:
        try:
            caller = tokens.identify(token_of(facts.headers))
            if needed not in caller.scopes:
                raise Forbidden(f"needs a token of the scope {needed.value}")
        except AccessError as error:
            return _refuse(401, str(error))
        return None

    return check


def _closed_check(facts: RequestFacts) -> Response | None:
    return _refuse(404, "not served here") if facts.path.startswith(CLOSED) else None


def token_of(headers: Mapping[bytes, bytes]) -> str:
    """The token of an Authorization header: Bearer, or the password of Basic; "" without a token."""
    kind, _, value = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except ValueError:
            return ""
    return value if kind.lower() == "bearer" else ""


def _refuse(status: int, detail: str) -> Response:
    challenge = {"www-authenticate": 'Basic realm="token of the rollout API"'}
    return JSONResponse({"detail": detail}, status, challenge if status == 401 else None)
