from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from atroposlib.trackers.services import Wandb, open_wandb
from tests.trackers.runs import run_of


class RecordedRun:
    def __init__(self):
        self.calls = []

    def define_metric(self, name, **options):
        self.calls.append((name, options))

    def log(self, metrics):
        self.calls.append(metrics)

    def finish(self):
        self.calls.append("finish")


def test_the_step_is_a_metric_so_that_it_may_decrease():
    run = RecordedRun()
    tracker = Wandb(run)
    tracker.log({"train/loss": 0.5}, 5)
    tracker.log({"train/loss": 0.25}, 4)
    tracker.close()
    assert run.calls == [
        ("step", {"hidden": True}),
        ("*", {"step_metric": "step"}),
        {"train/loss": 0.5, "step": 5},
        {"train/loss": 0.25, "step": 4},
        "finish",
    ]


def test_a_missing_account_is_a_setting_that_is_named(monkeypatch):
    wandb = pytest.importorskip("wandb")
    from wandb.errors import UsageError

    def refuse(**given):
        raise UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ConfigError, match="No API key configured; run `wandb login`"):
        open_wandb(run_of())
