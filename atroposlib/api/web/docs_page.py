"""Page ``/docs``: every route and type of the OpenAPI document, without scripts or network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse

TEMPLATE = Path(__file__).with_suffix(".html")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def add_docs(app: FastAPI) -> None:
    """Serve the page of ``app``, which is made without FastAPI's own."""

    async def docs(_: Request) -> HTMLResponse:
        return HTMLResponse(page(app.openapi()), headers={"content-security-policy": POLICY})

    for path in ("/docs", "/redoc"):
        app.add_route(path, docs, include_in_schema=False)


def page(document: Mapping[str, Any]) -> str:
    """Render an OpenAPI document; every text in it is escaped."""
    import jinja2  # here: run-api starts without it

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    style = TEMPLATE.with_suffix(".css").read_text(encoding="utf-8")
    return template.render(document, style=style)
