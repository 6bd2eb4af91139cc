"""The real application in this process, under a clock that tests move."""

from __future__ import annotations

import pytest

from tests.client.harness import Clock, in_process


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def transport(clock):
    with in_process(clock=clock) as transport:
        yield transport
