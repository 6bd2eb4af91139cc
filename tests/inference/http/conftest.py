"""A client of the application in process."""

from __future__ import annotations

import httpx
import pytest

from atroposlib.inference.http.app import create_app


@pytest.fixture
async def http(engine):
    transport = httpx.ASGITransport(app=create_app(engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        yield client
