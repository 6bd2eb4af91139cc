"""HTTP replies of libraries in the manner of aiohttp."""

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
    """For the log only: a body that cannot be read must not hide why it is looked at."""
    try:
        with boundary("http reply", resp.status, "reading the body"):
            return str(await resp.text())
    except AtroposError as error:
        return f"({error})"
