"""OpenAPI schemas of errors and of the bodies that FastAPI does not parse, and page ``/docs``.

Scored groups are parsed without pydantic, so their schema is generated here from the record
(:class:`atroposlib.wire.ScoredData`). All errors have the same shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import HTMLResponse

from atroposlib.api.codec.formats import GROUP_MEDIA, GROUPS_MEDIA
from atroposlib.wire import ClaimedBatch, ScoredData

_REF = "#/components/schemas/{name}"
_GROUP: dict[str, Any] = {"$ref": _REF.format(name="ScoredData")}
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


class Problem(BaseModel):
    """An error: ``status`` is a word for programs, ``detail`` a sentence for people."""

    detail: str
    status: str | None = None


class Full(Problem):
    """429 of POST /groups; a full store adds the payload bytes that would be accepted."""

    credit_bytes: int | None = None


def refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    """``responses=`` of a route that may fail with these codes, in addition to the usual."""
    usual = (400, 401, 403, 413, 421, 422, 503)
    # Not by "model": a validator for each would be four fifths of the time to make the app.
    content = {"application/json": {"schema": {"$ref": _REF.format(name="Problem")}}}
    return {code: {"content": content} for code in sorted({*usual, *codes})}


def _raw(content: dict[str, Any], text: str, required: bool = True) -> dict[str, Any]:
    return {"requestBody": {"required": required, "description": text, "content": content}}


ONE_GROUP = _raw(
    {"application/json": {"schema": _GROUP}, GROUP_MEDIA: _BINARY},
    "One scored group, as JSON or as a safetensors file (plain, or in one zstd frame).",
)
MANY_GROUPS = _raw(
    {
        "application/json": {"schema": {"type": "array", "items": _GROUP}},
        GROUPS_MEDIA: _BINARY,
    },
    "Scored groups, as a JSON list or as frames: u64 little-endian length, then a group.",
)
DROPPED_GROUP = _raw(
    ONE_GROUP["requestBody"]["content"], "One of the groups, optional.", required=False
)
NOTES = _raw(
    {"application/x-atropos-notes": _BINARY},
    "Frames: u64 little-endian length, then the notes about a group, a safetensors file.",
)
ENV_IDENTIFIER_BODY = _raw(
    {"application/json": {"schema": {"$ref": _REF.format(name="EnvIdentifier")}}},
    "The calling environment; alternatively in the query.",
    required=False,
)


def group_responses(name: str | None = None) -> dict[int | str, dict[str, Any]]:
    """``responses=`` of a route that streams groups; ``name`` is the schema of its JSON."""
    schema = {"$ref": _REF.format(name=name)} if name else _LIST_OF_GROUPS
    content = {"application/json": {"schema": schema}, GROUPS_MEDIA: _BINARY}
    return {200: {"description": "The groups, as the Accept header asks.", "content": content}}


_LIST_OF_GROUPS: dict[str, Any] = {
    "type": "object",
    "required": ["batch"],
    "properties": {
        "batch": {"anyOf": [{"type": "array", "items": _GROUP}, {"type": "null"}]},
        "status": {"type": "string"},
        "message": {"type": "string"},
    },
}


def describe(app: FastAPI) -> None:
    """Add the schemas of the record to the OpenAPI document of ``app``."""
    build = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = build()
            _, components = msgspec.json.schema_components(
                [ScoredData, ClaimedBatch], ref_template=_REF
            )
            components["Problem"] = Problem.model_json_schema()
            document["components"]["schemas"].update(components)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


# --- the page /docs -------------------------------------------------------------------

TEMPLATE = Path(__file__).with_name("docs_page.html")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def add_docs(app: FastAPI) -> None:
    """Serve the page ``/docs`` of ``app``, without scripts or network."""

    async def docs(_: Request) -> HTMLResponse:
        return HTMLResponse(
            docs_page(app.openapi()), headers={"content-security-policy": POLICY}
        )

    for path in ("/docs", "/redoc"):
        app.add_route(path, docs, include_in_schema=False)


def docs_page(document: Mapping[str, Any]) -> str:
    """Render an OpenAPI document; every text in it is escaped."""
    import jinja2  # here: run-api starts without it

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    style = TEMPLATE.with_suffix(".css").read_text(encoding="utf-8")
    return template.render(document, style=style)
