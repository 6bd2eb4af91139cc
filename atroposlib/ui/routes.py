"""Routes of the page: its files under ``/ui/``, without data."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from atroposlib.ui import HEADERS, assets


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
