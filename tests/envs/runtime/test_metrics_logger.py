"""Metrics of an environment, their sinks, and the trackers that an environment chooses."""

from __future__ import annotations

import asyncio
import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from atroposlib.envs.cli import main
from atroposlib.envs.runtime.metrics_logger import MetricsLogger, TrackerSink, scalars
from atroposlib.errors import ConfigError
from atroposlib.trackers import TRACKERS, Guarded, is_installed
from tests.envs.toys import ToyEnv, eventually, toy_env


def test_metrics_are_one_json_line_per_emission(tmp_path):
    path = tmp_path / "deep" / "metrics.jsonl"
    book = MetricsLogger("toy", str(path))
    book.log("exact", 1.0)
    book.log("exact", 0.0)
    book.emit({**book.averages(), "table": object(), "n": np.int64(3), "bad": np.nan}, step=7)
    assert book.averages() == {}
    line = json.loads(path.read_text())  # flushed before it is closed
    book.close()
    del line["time"]
    assert line == {"env": "toy", "step": 7, "exact": 0.5, "n": 3, "bad": None}


def test_the_log_line_has_each_measure_once_and_no_spreads(caplog):
    caplog.set_level("INFO")
    metrics = {"rollouts/reward": 0.5, "train/reward": 0.75, "train/completion_lengths": 8}
    metrics |= {"train/completion_lengths_std": 2.0, "train/kept": 3, "eval/exact": 1.0}
    MetricsLogger("toy", None).emit({**metrics, "server/free": 1}, step=7)
    line = "toy step 7: reward 0.5, completion_lengths 8, kept 3, eval/exact 1"
    assert caplog.messages == [line]


def test_only_numbers_and_words_are_scalars():
    given = {"a": 1, "b": [1], "c": "x", "d": None, "e": {}, "f": float("inf")}
    assert scalars(given) == {"a": 1, "c": "x", "d": None, "f": None}


class Recorded:
    def __init__(self):
        self.logged = []
        self.closed = False

    def log(self, metrics, step):
        self.logged.append((dict(metrics), step))

    def close(self):
        self.closed = True


def test_only_train_names_are_prefixed_in_trackers():
    tracker = Recorded()
    sink = TrackerSink(Guarded("wandb", lambda: tracker), "toy_0_")
    sink.write({"train/x": 1, "train_perf/y": 2, "eval/z": 3, "server/server_0_a": 4}, 7)
    sink.close()
    expected = {
        "toy_0_train/x": 1,
        "toy_0_train_perf/y": 2,
        "eval/z": 3,
        "server/server_0_a": 4,
    }
    assert tracker.logged == [(expected, 7)] and tracker.closed


@pytest.mark.parametrize("name", TRACKERS)
def test_wandb_takes_everything_and_the_other_trackers_take_finite_numbers(name):
    tracker, table = Recorded(), object()
    book = MetricsLogger("toy", None)
    book.sinks = [TrackerSink(Guarded(name, lambda: tracker))]
    given = {"a": np.int64(1), "b": True, "c": "x", "d": None, "e": np.nan, "f": table}
    book.emit(given, 7)
    assert tracker.logged == [(given if name == "wandb" else {"a": 1.0}, 7)]
    assert book.shows_tables is (name == "wandb")


@pytest.mark.parametrize("name", TRACKERS)
async def test_a_chosen_tracker_records_the_run_of_an_environment(
    name, toy_config, inference_url, tmp_path, monkeypatch, capsys
):
    """Each with its real package; without it the error names the extra, in one line."""
    if not is_installed(name):
        await asyncio.to_thread(refused_in_one_line, name, capsys)
        return
    for variable, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
        "SWANLAB_MODE": "offline",
        "SWANLAB_LOG_DIR": str(tmp_path / "swanlab"),
        "TRACKIO_DIR": str(tmp_path / "trackio"),
    }.items():
        monkeypatch.setenv(variable, value)
    config = toy_config.model_copy(
        update={"trackers": [name], "log_dir": str(tmp_path), "total_steps": 1}
    )
    env = toy_env(config, inference_url)
    assert await env.process_manager() == 1
    if name == "wandb":
        sys.modules[name].teardown()  # it keeps the directory of its first run
    files = {
        "wandb": "wandb/offline-run-*/run-*.wandb",
        "tensorboard": "tensorboard/toy-*/events.*",
        "swanlab": "swanlab/run-*/run-*.swanlab",
        "trackio": "trackio/atropos.db",
    }
    (file,) = tmp_path.glob(files[name])
    # SQLite may keep the newest pages in a separate file, until a later checkpoint.
    recorded = b"".join(part.read_bytes() for part in file.parent.glob(f"{file.name}*"))
    assert b"train/completion_lengths" in recorded
    assert not any("failed" in line for line in capsys.readouterr().out.splitlines())


def refused_in_one_line(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main(ToyEnv, ["process", "--env.trackers", json.dumps([name])])
    _, extras, _ = TRACKERS[name]
    expected = f"error: tracker {name} needs: pip install 'atropos-rl[{extras}]'\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, expected)


def test_a_tracker_without_its_package_is_refused_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in TRACKERS:
        refused_in_one_line(name, capsys)


@pytest.fixture
def recorded_wandb(monkeypatch):
    """A package ``wandb`` that records its calls."""
    calls = []
    run = SimpleNamespace(
        log=lambda metrics, step: calls.append((step, sorted(metrics))),
        finish=lambda: calls.append("finish"),
    )
    package, errors = ModuleType("wandb"), ModuleType("wandb.errors")
    package.__spec__ = SimpleNamespace(name="wandb")  # type: ignore[assignment]
    package.init = lambda **given: calls.append(given) or run  # type: ignore[attr-defined]
    package.Table = lambda columns: SimpleNamespace(  # type: ignore[attr-defined]
        add_data=lambda *row: None
    )
    errors.UsageError = RuntimeError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.setitem(sys.modules, "wandb.errors", errors)
    return calls


async def test_use_wandb_opens_the_run_of_the_original(
    recorded_wandb, toy_config, inference_url
):
    config = toy_config.model_copy(update={"use_wandb": True, "wandb_name": "mine"})
    env = toy_env(config, inference_url)
    env._atropos.joined_run.name, env.wandb_project, env.wandb_group = "mine_0", "p", "g"
    env._atropos.metrics_logger.open_trackers(env._atropos.joined_run)
    await env.add_rollouts_for_wandb({"tokens": [[5, 6], [7]], "scores": [1.0, 0.0]})
    await env.wandb_log({"train/percent_correct": 0.5, "eval/exact": 1})
    await env.close()
    given, (step, names), end = recorded_wandb
    assert {"mine_0_train/percent_correct", "mine_0_train/rollouts", "eval/exact"} <= set(
        names
    )
    assert (step, end) == (0, "finish")
    settings = given.pop("config")
    assert settings["wandb_name"] == "mine" and settings["use_wandb"] is True
    name, suffix = given.pop("name").rsplit("-", 1)
    assert name.startswith("mine-20") and len(suffix) == 6 and suffix.islower()
    assert given == {"project": "p", "group": "g", "id": None, "resume": None}


async def test_use_wandb_without_the_package_is_a_line_of_the_log(
    monkeypatch, toy_config, inference_url, caplog
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    env = toy_env(toy_config.model_copy(update={"use_wandb": True}), inference_url)
    env._atropos.metrics_logger.open_trackers(env._atropos.joined_run)
    assert (
        "wandb is not installed" in caplog.text
        and not env._atropos.metrics_logger.shows_tables
    )


async def test_a_missing_account_ends_the_environment(
    recorded_wandb, monkeypatch, toy_config, inference_url
):
    def refuse(**given):
        raise RuntimeError("No API key configured.")

    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    env = toy_env(toy_config.model_copy(update={"use_wandb": True}), inference_url)
    with pytest.raises(ConfigError, match="set WANDB_MODE=offline, or set use_wandb to false"):
        await env.process_manager()


@pytest.mark.parametrize("settings", [{"use_wandb": True}, {"trackers": ["wandb"]}])
async def test_trackers_of_serve_have_the_project_and_group_of_the_trainer(
    recorded_wandb, api, toy_config, inference_url, settings
):
    words = {"wandb_project": "p", "wandb_group": "g"}
    with api.trainer(batch_size=2, num_steps=1, **words):
        env = toy_env(toy_config, inference_url, rollout_server_url=api.url, **settings)
        serving = asyncio.ensure_future(env.env_manager())
        await eventually(lambda: env._atropos.group_stats.sent > 0)
        env._atropos.serving.shutdown.request("test")
        await asyncio.wait_for(serving, 600)
    given, *steps, end = recorded_wandb
    assert (given["project"], given["group"]) == ("p", "g")
    assert any("toy_0_train/items_sent_to_api" in names for _, names in steps)
    assert end == "finish"
