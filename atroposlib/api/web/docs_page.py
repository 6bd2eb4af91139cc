"""Page ``/docs``: every route and type of the OpenAPI document, without scripts or network.

All texts of the document are escaped; the page loads nothing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse

STYLE = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
Json = Mapping[str, Any]


def add_docs(app: FastAPI) -> None:
    """Serve the page of ``app``, which is made without FastAPI's own."""

    async def docs(request: Request) -> HTMLResponse:
        text = page(app.openapi(), str(request.base_url).rstrip("/"))
        return HTMLResponse(text, headers={"content-security-policy": POLICY})

    for path in ("/docs", "/redoc"):
        app.add_route(path, docs, include_in_schema=False)


def page(document: Json, url: str) -> str:
    """Render an OpenAPI document. Pure."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    routes: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            routes.setdefault(tag, []).append(_route(method.upper(), path, operation, url))
    body = "".join(f"<h2>{escape(tag)}</h2>{''.join(each)}" for tag, each in routes.items())
    types = "".join(_type(*item) for item in sorted(document["components"]["schemas"].items()))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><main><h1>{title}</h1>"
        '<p>Machine-readable: <a href="openapi.json">openapi.json</a>. Types of the bodies are '
        f'<a href="#types">below</a>.</p>{body}<h2 id="types">types</h2>{types}'
        "</main></body></html>"
    )


def _route(method: str, path: str, operation: Json, url: str) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    rows = [
        (p["name"], _kind(p.get("schema", {})), p["in"])
        for p in operation.get("parameters", [])
    ]
    rows += [("body", _kind(body["schema"]), escape(media)) for media, body in content.items()]
    for code, reply in operation["responses"].items():
        kinds = [
            _kind(body["schema"])
            for body in reply.get("content", {}).values()
            if body.get("schema")
        ]
        rows.append((code, " or ".join(kinds), escape(reply.get("description", ""))))
    words = ["curl", *(["-X", "POST"] if method == "POST" else []), url + path]
    words += ["-H", "content-type: application/json", "-d", "{...}"] if content else []
    mark = " (deprecated)" if operation.get("deprecated") else ""
    text = operation.get("description") or operation.get("summary") or ""
    return (
        f"<details><summary><b>{escape(method)}</b> <code>{escape(path)}</code>{mark}</summary>"
        f"<p>{escape(text)}</p><pre>{escape(shlex.join(words))}</pre>{_table(rows)}</details>"
    )


def _type(name: str, schema: Json) -> str:
    needed = schema.get("required", ())
    rows = []
    for field, about in schema.get("properties", {}).items():
        default = f"default {json.dumps(about['default'])}" if "default" in about else ""
        notes = ["required" if field in needed else default, about.get("description", "")]
        rows.append((field, _kind(about), escape("; ".join(note for note in notes if note))))
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"<p>{escape(schema.get('description', ''))}</p>{_table(rows)}</details>"
    )


def _kind(schema: Json) -> str:
    """Return a type as HTML; a reference is a link to its entry."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f'<a href="#{name}">{name}</a>'
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_kind(each) for each in several)
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return escape(
        " | ".join(map(str, schema.get("enum", ()))) or str(schema.get("type", "any"))
    )


def _table(rows: list[tuple[str, str, str]]) -> str:
    """Draw rows of a name as text, and a type and a note as HTML."""
    cells = "".join(
        f"<tr><th>{escape(name)}</th><td>{kind}</td><td>{note}</td></tr>"
        for name, kind, note in rows
    )
    return f'<div class="scroll"><table>{cells}</table></div>'
