"""Ids: fresh by default, and those of another source."""

from __future__ import annotations

from uuid import UUID

from atroposlib.client import AsyncRolloutClient
from atroposlib.wire import ids


async def test_ids_differ_and_come_from_the_source(monkeypatch):
    async with AsyncRolloutClient("http://127.0.0.1:9") as one:
        async with AsyncRolloutClient("http://127.0.0.1:9") as other:
            assert one._instance != other._instance
    monkeypatch.setattr(ids, "source", lambda: UUID(int=7))
    async with AsyncRolloutClient("http://127.0.0.1:9") as client:
        assert client._instance == "0" * 31 + "7"
