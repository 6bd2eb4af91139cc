"""The page of a run: static files, served under ``/ui/`` without data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

STATIC = Path(__file__).with_name("static")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # kept, and compared by its ETag: an upgrade shows at once
}


@cache
def assets() -> Mapping[str, tuple[bytes, dict[str, str]]]:
    """Content and headers of each static file, by its name; the page has the name ''."""
    files = {}
    for path in sorted(STATIC.iterdir()):
        content = path.read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        about = {"content-type": TYPES[path.suffix], "etag": tag}
        files["" if path.name == "index.html" else path.name] = (content, HEADERS | about)
    return files


async def serve_asset(request: Request) -> Response:
    """Response with a static file; 304 for the version that the browser has."""
    name = request.path_params.get("asset", "")
    if name not in assets():
        return Response("no such file of the page", 404, HEADERS, "text/plain")
    content, headers = assets()[name]
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(None, 304, headers)
    return Response(content, 200, headers)


async def to_page(_: Request) -> Response:
    """The address without its slash: relative addresses of the page need it."""
    return RedirectResponse("ui/")


def page_routes() -> list[Route]:
    """Routes of the page, for the application that also has ``/explore``."""
    return [
        Route("/ui", to_page),
        Route("/ui/", serve_asset),
        Route("/ui/{asset}", serve_asset),
    ]
