"""Tests of trackers: metric names of dashboards, real event files, isolated failures."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from atroposlib import trackers
from atroposlib.errors import ConfigError
from atroposlib.trackers.jsonl import read_steps
from example_trainer.run.display import LineDisplay
from example_trainer.run.metrics_log import MetricsLog, tracked_numbers, tracker_name


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("loss", "train/loss"),
        ("grad_norm", "train/grad_norm"),
        ("lr", "train/lr"),
        ("pos_logp", "train/pos_logp"),
        ("neg_logp", "train/neg_logp"),
        ("ratio_mean", "grpo/mean_ratio"),
        ("clip_ratio", "grpo/clipped_fraction"),
        ("training_logprob_mean", "logprobs/training_mean"),
        ("inference_logprob_std", "logprobs/inference_std"),
        ("logprob_diff_abs_mean", "alignment/diff_abs_mean"),
        ("logprob_diff_max", "alignment/diff_max"),
        ("seconds_publish", "train/sync_time"),
        ("seconds_wait", "train/data_fetch_time"),
        ("gpu_memory_gb", "train/gpu_memory_gb"),
        ("reward_mean", "reward/mean"),
        ("staleness_p95", "staleness/p95"),
        ("seconds_save", "time/save"),
        ("completion_length_max", "lengths/completion_length_max"),
        ("truncated_share", "lengths/truncated_share"),
        ("publish_mismatch_max", "alignment/publish_mismatch_max"),
        ("env/exact", "env/exact"),
        ("tokens", "train/tokens"),
    ],
)
def test_metrics_keep_their_dashboard_names_and_sections(ours, theirs):
    assert tracker_name(ours) == theirs


def test_only_finite_numbers_go_to_trackers():
    record = {
        "step": 3,
        "time": 1.0,
        "loss": float("nan"),
        "keys": ["a"],
        "lr": 1,
        "n": 10**400,
        "ok": True,
    }
    assert tracked_numbers(record) == {"train/lr": 1.0}


def test_no_two_metrics_share_a_name():
    from example_trainer.run.metrics_log import NAMES

    assert len(set(NAMES.values())) == len(NAMES)


def write_steps(cfg, steps, *, begin=0, run_id="run-1", loss=0.5):
    with MetricsLog(cfg, LineDisplay()) as log:
        log.begin(run_id, begin)
        for step in steps:
            log.write({"step": step, "tokens": 4, "loss": loss, "seconds_train": 1.0})


def test_tensorboard_events_are_complete_after_a_restart(config):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    cfg = config(trackers=["tensorboard"])
    write_steps(cfg, (1, 2, 3))
    write_steps(cfg, (2, 3), begin=1, loss=0.25)
    (directory,) = (cfg.metrics_file.parent / "tensorboard").iterdir()
    events = EventAccumulator(str(directory))
    events.Reload()
    read = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert read == [(1, 0.5), (2, 0.25), (3, 0.25)]
    assert "train/step_time" in events.Tags()["scalars"]


def test_wandb_works_offline_without_an_account(config, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    told = []
    monkeypatch.setattr(wandb.Run, "log", lambda run, metrics: told.append(metrics))
    write_steps(config(use_wandb=True, run_name="named"), (1,))
    assert told == [
        {
            "train/loss": 0.5,
            "train/tokens": 4.0,
            "train/step_time": 1.0,
            "train/tokens_per_s": 4.0,
            "step": 1,
        }
    ]
    assert list(tmp_path.glob("wandb/offline-run-*-run-1"))


@pytest.mark.parametrize("name", ["swanlab", "trackio"])
def test_tracker_run_of_the_same_id_is_resumed_after_a_restart(config, monkeypatch, name):
    """Against recorded calls; the names are those of swanlab 0.10.3 and trackio 0.43.0."""
    calls = []
    run = SimpleNamespace(
        log=lambda data, step: calls.append(("log", data, step)),
        finish=lambda: calls.append(("finish",)),
    )
    fake = ModuleType(name)
    fake.__spec__ = SimpleNamespace(name=name)  # type: ignore[assignment]
    fake.init = lambda **told: calls.append(("init", told)) or run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, fake)
    cfg = config(
        trackers=[name], run_name="night", wandb_project="p", inference_token="secret"
    )
    write_steps(cfg, (5,), begin=4)
    (_, told), (_, data, step), (ended,) = calls
    assert (told["project"], told["resume"]) == ("p", "allow")
    assert "run-1" in (told.get("id"), told["name"].removeprefix("night-"))
    assert "secret" not in json.dumps(told)
    assert (data["train/loss"], step, ended) == (0.5, 5, "finish")


def test_a_tracker_that_is_not_installed_is_refused_at_once_with_its_extra(
    config, monkeypatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"swanlab.*pip install 'atropos-rl\[trackers\]'"):
        MetricsLog(config(trackers=["swanlab"]), LineDisplay())
    with pytest.raises(ConfigError, match="there are: swanlab, tensorboard"):
        trackers.require_tracker("mlflow")


class Failing:
    """Fails at every step but the second."""

    def __init__(self) -> None:
        self.closed = False

    def log(self, metrics, step):
        if step != 2:
            raise ConnectionError("no route")

    def close(self):
        self.closed = True
        raise OSError("gone")


def test_failing_tracker_is_logged_once_and_counted_while_training_continues(
    config, monkeypatch, caplog
):
    caplog.set_level("INFO")
    failing = Failing()
    monkeypatch.setattr(trackers, "require_tracker", lambda name: None)
    monkeypatch.setattr(trackers, "open_tracker", lambda name, run: failing)
    cfg = config(trackers=["tensorboard"])
    write_steps(cfg, range(1, 15))
    out = caplog.text
    assert out.count("ConnectionError: no route") == 1 and "off after 10" in out
    counts = [line["failures_tensorboard"] for line in read_steps(cfg.metrics_file)]
    assert counts == [1, 1, *range(2, 12), 11, 11]
    assert not failing.closed


def test_training_continues_without_a_tracker_that_fails_to_start(config, monkeypatch, caplog):
    caplog.set_level("INFO")

    def refuse(name, run):
        raise TimeoutError("no answer in 90 s")

    monkeypatch.setattr(trackers, "require_tracker", lambda name: None)
    monkeypatch.setattr(trackers, "open_tracker", refuse)
    cfg = config(trackers=["trackio"])
    write_steps(cfg, (1,))
    assert "no answer in 90 s" in caplog.text
    assert read_steps(cfg.metrics_file)[0]["failures_trackio"] == 1
