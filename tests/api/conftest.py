"""Fixtures of the rollout API: in memory, on disk, and on a server."""

from __future__ import annotations

import pytest

from tests.api.store.stores import STORES, Opened
from tests.postgres_server import LACKING, postgres  # noqa: F401


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    without_server = [report for report in skipped if LACKING in str(report.longrepr)]
    if without_server:
        terminalreporter.write_line(f"{len(without_server)} tests skipped: {LACKING}")


@pytest.fixture
async def api(tmp_path):
    from tests.api.harness import Api

    api = Api(tmp_path)
    yield api
    await api.end()


@pytest.fixture
async def durable(tmp_path):
    from tests.api.harness import Api

    api = Api(tmp_path, "sqlite")
    yield api
    await api.end()


@pytest.fixture(params=STORES)
def reopen(request, tmp_path):
    """Opens stores of one kind; see ``stores``."""
    opened = Opened(request.param, STORES[request.param](tmp_path, request.getfixturevalue))
    yield opened
    opened.close()


@pytest.fixture
def store(reopen):
    return reopen()
