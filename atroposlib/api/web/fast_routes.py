"""The routes that are called hundreds of times a second, past the framework's own steps.

The router, its exception handling and its exit stacks cost more than a small post itself.
What goes straight is a :class:`RawRoute` at a fixed path: the same handler, and the same
answers to errors, so that nobody can tell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from fastapi import HTTPException
from fastapi.exception_handlers import http_exception_handler
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from atroposlib.api.web.requests import RawRoute
from atroposlib.api.web.responses import STATUS_OF

Refuse: TypeAlias = Callable[[Request, Exception], Awaitable[Response]]
_REFUSED = tuple(STATUS_OF)


class Straight:
    """Pure ASGI, the innermost one: all other middlewares have let the request through."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute], refuse: Refuse) -> None:
        self.app = app
        self._refuse = refuse
        self._handlers = {
            (method, route.path): route.get_route_handler()
            for route in routes
            if isinstance(route, RawRoute) and "{" not in route.path
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = None
        if scope["type"] == "http":
            handler = self._handlers.get((scope["method"], scope["path"]))
        if handler is None:
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await handler(request)
        except _REFUSED as error:
            response = await self._refuse(request, error)
        except HTTPException as error:
            response = await http_exception_handler(request, error)
        await response(scope, receive, send)
