"""Fixtures of this folder."""

from __future__ import annotations

import pytest

from example_trainer.weights.engines import connect_engine

QUICK = {"timeout_s": 10.0, "wait_s": 0.0, "on_wait": lambda what: None}


@pytest.fixture
def to(serve):
    opened = []

    def connect_to(app, kind="auto"):
        opened.append(connect_engine(serve(app), kind, **QUICK))
        return opened[-1]

    yield connect_to
    for engine in opened:
        engine.close()
