"""Metrics, checkpoints and evaluation results: written whole, read back, never fatal."""

from __future__ import annotations

import json

import numpy as np
import pytest

from atroposlib.envs.runtime import checkpoint
from atroposlib.envs.runtime.evaluation import write_results
from atroposlib.envs.runtime.metrics_logger import JsonlSink, MetricsLogger, scalars
from atroposlib.envs.runtime.process import run_evaluate
from atroposlib.errors import RolloutError
from tests.envs.toys import toy_env


def test_metrics_are_one_json_line_per_emission(tmp_path):
    path = tmp_path / "deep" / "metrics.jsonl"
    book = MetricsLogger([JsonlSink(path, "toy")])
    book.log("exact", 1.0)
    book.log("exact", 0.0)
    book.emit({**book.averages(), "table": object(), "n": np.int64(3), "bad": np.nan}, step=7)
    assert book.averages() == {}
    line = json.loads(path.read_text())  # flushed before it is closed
    book.close()
    del line["time"]
    assert line == {"env": "toy", "step": 7, "exact": 0.5, "n": 3, "bad": None}


def test_only_numbers_and_words_are_scalars():
    given = {"a": 1, "b": [1], "c": "x", "d": None, "e": {}, "f": float("inf")}
    assert scalars(given) == {"a": 1, "c": "x", "d": None, "f": None}


def test_a_restarted_environment_finds_its_newest_state_under_any_of_its_names(tmp_path):
    root = str(tmp_path)
    checkpoint.save(root, "toy_0", 5, {"iter": 50})
    checkpoint.save(root, "toy_0", 10, {"iter": 100})
    checkpoint.save(root, "toy_0", 20, {"iter": 200})
    checkpoint.save(root, "toyota_0", 15, {"iter": -1})
    assert checkpoint.newest(root, "toy_1", 17) == {"iter": 100}
    assert checkpoint.newest(root, "toy_1", 3) is None
    assert checkpoint.newest(str(tmp_path / "absent"), "toy", 3) is None


def test_a_name_from_the_api_cannot_lead_out_of_the_directory(tmp_path):
    path = checkpoint.save(str(tmp_path / "in"), "../../out", 1, {})
    assert (tmp_path / "in") in path.resolve().parents


def test_a_checkpoint_sets_known_state_and_nothing_else():
    class Thing:
        def __init__(self):
            self.iter, self.config = 0, "config"

        def method(self): ...

    thing = Thing()
    data = {"iter": 3, "config": "x", "method": 1, "_private": 1, "new": 1}
    checkpoint.restore(thing, data, frozenset({"config"}))
    assert vars(thing) == {"iter": 3, "config": "config"}


def test_results_survive_values_that_are_no_numbers(tmp_path):
    write_results(
        tmp_path,
        {"exact": np.float32(0.5), "none": None, "word": "x", "nan": float("nan")},
        task="toy_eval",
        model_name="m",
        seconds=1.5,
        generation_parameters={"temperature": 0.6},
        samples=[{"a": np.arange(2)}],
        measured_at={"eval_step": 3},
    )
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["config_general"] == {
        "model_name": "m",
        "total_evaluation_time_seconds": "1.5",
        "generation_parameters": {"temperature": 0.6},
        "eval_step": 3,
    }
    expected = {"exact": 0.5, "none": None, "word": "x", "nan": None}
    assert written["results"] == {"atropos|toy_eval|0": expected, "all": expected}
    assert json.loads((tmp_path / "samples.jsonl").read_text()) == {"a": [0, 1]}
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.json", "samples.jsonl"}


async def test_evaluate_writes_its_results_and_closes(toy_config, tmp_path, capsys):
    env = toy_env(toy_config, "http://127.0.0.1:9/v1", data_dir_to_save_evals=str(tmp_path))
    await run_evaluate(env)
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["results"]["atropos|toy_eval|0"] == {"exact": 0.25}
    assert written["config_general"]["model_name"] == "fake"
    assert "|0.2500|" in capsys.readouterr().out


async def test_a_failing_evaluation_fails_the_command(toy_config):
    env = toy_env(toy_config, "http://127.0.0.1:9/v1")

    async def broken(*args, **kwargs):
        raise KeyError("no test split")

    env.evaluate = broken
    with pytest.raises(RolloutError, match="evaluate failed"):
        await run_evaluate(env)


async def test_logged_values_and_group_metrics_reach_the_metrics_file(toy_config, tmp_path):
    path = tmp_path / "m.jsonl"
    env = toy_env(toy_config, "http://127.0.0.1:9/v1", metrics_path=str(path))
    env.log("train/mood", 1.0)
    group = {"tokens": [[5, 6], [5, 7]], "masks": [[-100, 6], [-100, 7]], "scores": [0.0, 1.0]}
    kept = await env.handle_send_to_api(
        [
            {**group, "metadata": {"metrics": {"exact": 0.5}}},
            None,
            {**group, "scores": [1.0, 1.0]},
        ],
        "item",
        do_send_to_api=False,
    )
    await env.wandb_log({"train/extra": 2})
    await env.close()
    line = json.loads(path.read_text())
    assert len(kept) == 1
    assert (
        line["train/mood"] == 1.0 and line["train/extra"] == 2 and line["train/exact"] == 0.5
    )
    assert line["train/completion_lengths"] == 1.0
    assert line["train/items_rejected"] == line["train/dropped_same_scores"] == 1
