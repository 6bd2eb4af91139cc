"""A PostgreSQL server for the moves of a run, and a run that ended."""

from __future__ import annotations

import pytest

from tests.api.harness import Api
from tests.certificate.certified import trained_run
from tests.postgres_server import postgres

__all__ = ["postgres"]


@pytest.fixture
async def run(tmp_path):
    """The data directory of a run that trained on a batch of a sealed group."""
    api = Api(tmp_path / "run", "sqlite", archive_bytes=2**20)
    await trained_run(api)
    await api.end()
    return api.folder
