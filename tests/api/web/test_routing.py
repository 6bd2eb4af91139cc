"""Route classes and the fast path: the same responses with and without the router."""

from __future__ import annotations

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from atroposlib.api.server import create_app
from atroposlib.api.web.routing import (
    BytesRoute,
    FastPath,
    JsonRoute,
    on_error,
)
from atroposlib.errors import UnknownEnv


class Number(BaseModel):
    value: float


def app_of(fast: bool) -> FastAPI:
    plain = APIRouter(route_class=BytesRoute)
    control = APIRouter(route_class=JsonRoute)

    @plain.post("/echo")
    async def echo(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await request.body())

    @plain.get("/absent")
    async def absent(request: Request) -> PlainTextResponse:
        raise UnknownEnv("no env 7")

    @plain.get("/items/{no}")
    async def item(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.path_params["no"])

    @control.post("/number")
    async def number(body: Number) -> dict[str, float]:
        return {"value": body.value}

    app = FastAPI()
    app.add_exception_handler(UnknownEnv, on_error)
    app.include_router(plain)
    app.include_router(control)
    if fast:
        app.add_middleware(FastPath, routes=plain.routes, refuse=on_error)
    return app


async def call(app, method, path, content=b""):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        headers = {"content-type": "application/json"}
        return await http.request(method, path, content=content, headers=headers)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("POST", "/echo", 200),
        ("GET", "/echo", 405),
        ("GET", "/absent", 404),
        ("GET", "/items/7", 200),
        ("GET", "/nothing", 404),
    ],
)
async def test_the_fast_path_changes_no_response(method, path, code):
    content = b"body" if method == "POST" else b""
    fast, usual = [await call(app_of(fast), method, path, content) for fast in (True, False)]
    assert (fast.status_code, fast.content) == (usual.status_code, usual.content)
    assert (fast.status_code, fast.headers) == (code, usual.headers)


def test_posts_and_batches_take_the_fast_path():
    """The framework may hold included routers instead of their routes."""
    app = create_app().guarded
    while not isinstance(app, FastPath):
        app = app.app
    fast = {("POST", "/groups"), ("POST", "/scored_data"), ("GET", "/batch")}
    assert fast <= app._handlers.keys()


@pytest.mark.parametrize("body", [b'{"value": NaN}', b'{"value": Infinity}', b"{", b"\xff"])
async def test_a_control_message_is_strict_json(body):
    assert (await call(app_of(False), "POST", "/number", body)).status_code == 422
