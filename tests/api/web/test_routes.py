"""Route classes: strict control messages, and errors of handlers behind the gate."""

from __future__ import annotations

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from atroposlib.api.server import create_app
from atroposlib.api.web.routes import BytesRoute, JsonRoute


class Number(BaseModel):
    value: float


def app_with_routes() -> FastAPI:
    plain = APIRouter(route_class=BytesRoute)
    control = APIRouter(route_class=JsonRoute)

    @plain.post("/echo")
    async def echo(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await request.body())

    @plain.get("/items/{no}")
    async def item(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.path_params["no"])

    @control.post("/number")
    async def number(body: Number) -> dict[str, float]:
        return {"value": body.value}

    app = FastAPI()
    app.router.routes.extend([*plain.routes, *control.routes])
    return app


async def call(app, method, path, content=b""):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        headers = {"content-type": "application/json"}
        return await http.request(method, path, content=content, headers=headers)


@pytest.mark.parametrize(
    ("method", "path", "code", "text"),
    [
        ("POST", "/echo", 200, "body"),
        ("GET", "/echo", 405, '{"detail":"Method Not Allowed"}'),
        ("GET", "/items/7", 200, "7"),
        ("GET", "/nothing", 404, '{"detail":"Not Found"}'),
    ],
)
async def test_a_handler_takes_the_request_alone(method, path, code, text):
    reply = await call(app_with_routes(), method, path, b"body" if method == "POST" else b"")
    assert (reply.status_code, reply.text) == (code, text)


@pytest.mark.parametrize("body", [b'{"value": NaN}', b'{"value": Infinity}', b"{", b"\xff"])
async def test_a_control_message_is_strict_json(body):
    assert (await call(app_with_routes(), "POST", "/number", body)).status_code == 422


@pytest.mark.parametrize(
    ("method", "path", "code", "text"),
    [
        ("GET", "/nothing", 404, '{"detail":"Not Found"}'),
        ("PUT", "/status", 405, '{"detail":"Method Not Allowed","status":"method"}'),
        ("POST", "/register", 422, '{"detail":"the body is not valid JSON"}'),
        (
            "POST",
            "/scored_data",
            400,
            '{"detail":"the body is not valid JSON","status":"malformed"}',
        ),
        ("GET", "/explore/groups/abc", 422, None),
        ("GET", "/explore/groups/7", 404, None),
    ],
)
async def test_the_api_answers_errors_of_its_router_and_handlers(method, path, code, text):
    app = create_app()
    reply = await call(app, method, path, b"{")
    assert reply.status_code == code and reply.headers["content-type"] == "application/json"
    assert text is None or reply.text == text
    if code == 405:
        assert reply.headers["allow"] == "GET"
    app.state.service.close()


async def test_a_slash_at_the_end_is_redirected():
    reply = await call(create_app(), "GET", "/status/")
    assert (reply.status_code, reply.headers["location"]) == (307, "http://x/status")
