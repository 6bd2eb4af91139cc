"""Fixtures of the rollout API: in memory, and on disk."""

from __future__ import annotations

import pytest

from tests.api.harness import Api


@pytest.fixture
async def api(tmp_path):
    api = Api(tmp_path)
    yield api
    await api.end()


@pytest.fixture
async def durable(tmp_path):
    api = Api(tmp_path, "sqlite")
    yield api
    await api.end()
