"""Fixture: logs of a process as text, with every logger put back after the test."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from atroposlib.utils.command import logs


@pytest.fixture
def logged(monkeypatch):
    """Begin to log as run-api does; gives the text so far."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "")
    stream = io.StringIO()

    def begin(style, level="debug"):
        logs.configure("run-api", style, level, stream)
        # Tests that serve with uvicorn leave its loggers with handlers and levels.
        for one in map(logging.getLogger, ("uvicorn", "uvicorn.error")):
            monkeypatch.setattr(one, "propagate", True)
        logging.getLogger("uvicorn.error").setLevel(logging.NOTSET)
        return stream.getvalue

    return begin
