"""Replicas of the rollout API over one database."""

from __future__ import annotations

import pytest

from tests.api.harness import Api


@pytest.fixture
async def replicas(postgres, tmp_path):
    url = postgres.fresh_url()
    one, other = Api(tmp_path, url), Api(tmp_path, url)
    yield one, other
    await one.end()
    await other.end()
