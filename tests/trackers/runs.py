"""Settings of a run for trackers, and a package that records its calls."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

from atroposlib.trackers import Run


def run_of(step=0, run_id="run/1", log_dir=".", **changes) -> Run:
    cfg = SimpleNamespace(
        **{"run_name": "night", "wandb_project": None, "wandb_group": "g", **changes},
        log_dir=str(log_dir),
        model_dump=lambda mode, exclude: {"lr": 0.1, "without": sorted(exclude)},
    )
    return Run(cfg, run_id, step)


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
