"""HTTP replies of libraries in the manner of aiohttp."""

from __future__ import annotations

import logging
from typing import Any


async def parse_http_response(resp: Any, logger: logging.Logger | None = None) -> Any:
    """The JSON body of ``resp``; a bad status or body is logged with its text and raised."""
    try:
        resp.raise_for_status()
        return await resp.json()
    except Exception as error:
        log = logger or logging.getLogger(__name__)
        log.error("status %s: %s: %s", resp.status, error, await resp.text())
        raise
