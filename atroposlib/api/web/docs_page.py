"""Page ``/docs``: every route and type of the OpenAPI document, without scripts or network.

All texts of the document are escaped; the page loads nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse

STYLE = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
Json = Mapping[str, Any]
Row = tuple[str, Json, str]  # name, type, note


def add_docs(app: FastAPI) -> None:
    """Serve the page of ``app``, which is made without FastAPI's own."""

    async def docs(request: Request) -> HTMLResponse:
        return HTMLResponse(page(app.openapi()), headers={"content-security-policy": POLICY})

    for path in ("/docs", "/redoc"):
        app.add_route(path, docs, include_in_schema=False)


def page(document: Json) -> str:
    """Render an OpenAPI document. Pure."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    routes = [
        _entry(f"{method.upper()} {path}", _description(operation), _bodies(operation))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    types = [
        _entry(name, schema.get("description", ""), _fields(schema))
        for name, schema in sorted(document["components"]["schemas"].items())
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><main><h1>{title}</h1><p>"
        'For programs: <a href="openapi.json">openapi.json</a>.</p><h2>Routes</h2>'
        f"{''.join(routes)}<h2>Types</h2>{''.join(types)}</main></body></html>"
    )


def _entry(name: str, text: str, rows: Iterable[Row]) -> str:
    cells = "".join(
        f"<tr><th>{escape(row)}</th><td>{_kind(schema)}</td><td>{escape(note)}</td></tr>"
        for row, schema, note in rows
    )
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f'<p>{escape(text)}</p><div class="scroll"><table>{cells}</table></div></details>'
    )


def _description(operation: Json) -> str:
    text = operation.get("requestBody", {}).get("description", "")
    return f"Deprecated. {text}" if operation.get("deprecated") else text


def _bodies(operation: Json) -> Iterable[Row]:
    for parameter in operation.get("parameters", ()):
        yield parameter["name"], parameter.get("schema", {}), f"in the {parameter['in']}"
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        yield "body", body["schema"], media
    replies: dict[str, list[str]] = {}  # status codes by the types of their bodies
    for code, reply in operation["responses"].items():
        kinds = [body.get("schema", {}) for body in reply.get("content", {}).values()]
        replies.setdefault(json.dumps({"anyOf": kinds}), []).append(code)
    for kind, codes in replies.items():
        yield ", ".join(codes), json.loads(kind), "response"


def _fields(schema: Json) -> Iterable[Row]:
    for name, about in schema.get("properties", {}).items():
        note = f"default {json.dumps(about['default'])}" if "default" in about else ""
        yield name, about, "required" if name in schema.get("required", ()) else note


def _kind(schema: Json) -> str:
    """Return a type as HTML; a reference is a link to its entry."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return escape(" | ".join(map(str, schema.get("enum", ()))) or str(schema.get("type", "")))
