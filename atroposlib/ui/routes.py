"""Routes of the page: its files under ``/ui/``, without data."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from atroposlib.ui import HEADERS, assets


def asset_response(request: Request, *folders: Path) -> Response:
    """Response with a static file; 304 for the version that the browser has."""
    name, files = request.path_params.get("asset", ""), assets(*folders)
    if name not in files:
        return Response("no such file of the page", 404, HEADERS, "text/plain")
    content, headers = files[name]
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(None, 304, headers)
    return Response(content, 200, headers)


async def to_page(_: Request) -> Response:
    """The address without its slash: relative addresses of the page need it."""
    return RedirectResponse("ui/")


def page_routes(*folders: Path) -> list[Route]:
    """Routes of the page, for the application that also has its data; see :func:`assets`."""

    async def serve_asset(request: Request) -> Response:
        return asset_response(request, *folders)

    return [
        Route("/ui", to_page),
        Route("/ui/", serve_asset),
        Route("/ui/{asset}", serve_asset),
    ]
