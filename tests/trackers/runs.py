"""Settings of a run for trackers, and a package that records its calls."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

from atroposlib.trackers.services import Run


def run_of(**changes) -> Run:
    given = {"name": "night", "group": "g", "run_id": "run/1", "settings": {"lr": 0.1}}
    return Run(**{**given, **changes})


def recorded_package(monkeypatch, name):
    """A module ``name`` whose ``init``, ``log`` and ``finish`` are recorded in the result."""
    calls = []
    run = SimpleNamespace(
        log=lambda data, step: calls.append(("log", data, step)),
        finish=lambda: calls.append(("finish",)),
    )
    package = ModuleType(name)
    package.init = lambda **given: calls.append(("init", given)) or run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, package)
    return calls


def plain(value):
    """``value`` after JSON; raises for a value that is not JSON."""
    return json.loads(json.dumps(value))
