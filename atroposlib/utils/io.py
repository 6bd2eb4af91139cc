"""JSON bodies of aiohttp-style HTTP responses."""

from __future__ import annotations

import logging
from typing import Any

from atroposlib.errors import AtroposError, boundary


async def parse_http_response(resp: Any, logger: logging.Logger | None = None) -> Any:
    """The JSON body of ``resp``; a bad status or body is logged with its text and raised."""
    try:
        resp.raise_for_status()
        return await resp.json()
    except Exception as error:
        log = logger or logging.getLogger(__name__)
        log.error("status %s: %s: %s", resp.status, error, await _body(resp))
        raise


async def _body(resp: Any) -> str:
    """Body for the log; a failure to read it must not hide the original error."""
    try:
        with boundary("http reply", resp.status, "reading the body"):
            return str(await resp.text())
    except AtroposError as error:
        return f"({error})"
