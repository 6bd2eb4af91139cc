"""Methods of ``BaseEnv``: names of metrics, evaluation results, tables, checkpoints."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pytest

from atroposlib.envs.base import BaseEnvConfig
from tests.envs.toys import ToyEnv, toy_env


@pytest.fixture
def env(toy_config, inference_url):
    return toy_env(toy_config, inference_url)


class Recorded:
    """A sink that keeps what is emitted."""

    def __init__(self):
        self.emitted = []

    def write(self, metrics, step):
        self.emitted.append((dict(metrics), step))

    def close(self): ...


async def test_the_runtimes_metrics_have_their_names(env):
    sink = Recorded()
    env._atropos.metrics_logger.sinks = [sink]
    env.completion_lengths = list(range(1, 101))
    for timings in (env.task_duration, env.succeeded_task_duration, env.mainloop_timings):
        timings += [1.0, 3.0]
    env.failed_task_duration += [2.0]  # one value has no spread
    env.workers_added_list += [1, 2]
    await env.wandb_log({"train/percent_correct": 0.5})
    ((metrics, step),) = sink.emitted
    durations = [
        f"train_perf/{name}_{figure}"
        for name in (
            "task_duration",
            "succeeded_task_duration",
            "mainloop_timings",
            "workers_added_per_attempt",
        )
        for figure in ("mean", "std", "max", "min")
    ]
    assert set(metrics) == {
        "train/percent_correct",
        "train/completion_lengths",
        *(f"train/completion_lengths_{figure}" for figure in ("std", "max", "min", "p95")),
        "train/items_sent_to_api",
        "train/items_rejected",
        *durations,
    }
    assert step == 0
    assert metrics["train/completion_lengths"] == 50.5
    assert metrics["train/completion_lengths_p95"] == 95  # of the lengths, in tokens
    assert metrics["train_perf/task_duration_mean"] == 2.0
    assert (env.completion_lengths, env.task_duration) == ([], [])


async def test_every_servers_timings_have_their_names(env):
    sink = Recorded()
    env._atropos.metrics_logger.sinks = [sink]
    for split in ("train", "eval"):
        await env.server.completion(prompt="a", n=1, max_tokens=4, split=split)
    await env.wandb_log()
    await env.close()
    metrics, _ = sink.emitted[0]
    assert metrics.keys() >= {
        *(f"server/server_0_request_time_{figure}" for figure in ("avg", "std", "99p")),
        *(f"server/server_0_eval_request_time_{figure}" for figure in ("avg", "std", "99p")),
        "server/server_0_average_num_attempts",
        "server/server_0_eval_retry_rate",
    }


async def test_results_with_values_of_every_kind_are_written_and_shown(env, tmp_path, capsys):
    import numpy as np

    env.config.data_dir_to_save_evals = str(tmp_path)
    metrics = {"eval/acc": np.float32(0.5), "none": None, "word": "fine", "nan": float("nan")}
    await env.evaluate_log(metrics, samples=[{"scores": np.array([1, 2])}], verbose=True)
    document = json.loads((tmp_path / "metrics.json").read_text())
    expected = {"eval/acc": 0.5, "none": None, "word": "fine", "nan": None}
    assert document["results"] == {"atropos|toy_eval|0": expected, "all": expected}
    general = document["config_general"]
    assert general["model_name"] == "fake"
    assert float(general["total_evaluation_time_seconds"]) == 0.0
    assert general["generation_parameters"] == {"max_new_tokens": 2048}
    assert json.loads((tmp_path / "samples.jsonl").read_text()) == {"scores": [1, 2]}
    assert "acc" in capsys.readouterr().out


async def test_empty_results_and_no_directory_are_no_error(env, tmp_path, capsys):
    await env.evaluate_log({})
    env.config.data_dir_to_save_evals = str(tmp_path / "deep" / "down")
    await env.evaluate_log({}, task_name="mine", model_name="m", verbose=False)
    document = json.loads((tmp_path / "deep" / "down" / "metrics.json").read_text())
    assert document["results"] == {"atropos|mine|0": {}, "all": {}}
    assert document["config_general"]["model_name"] == "m"


async def test_evaluations_of_a_run_do_not_overwrite_one_another(env, tmp_path):
    env.config.data_dir_to_save_evals = str(tmp_path)
    for step in (3, 6):
        env._atropos.measured_at = lambda step=step: {"eval_step": step}
        await env.evaluate_log({"acc": step})
    assert {path.name for path in tmp_path.iterdir()} == {"step-3", "step-6"}


@pytest.mark.parametrize("shown", [-1, 1, 5])
async def test_a_group_smaller_than_the_limit_is_shown_whole(env, shown):
    env._atropos.metrics_logger.sinks = [SimpleNamespace(shows_tables=True)]
    env.config.num_rollouts_per_group_for_logging = shown
    await env.add_rollouts_for_wandb({"tokens": [[5, 6], [7]], "scores": [1.0, 0.0]})
    (rows,) = env.rollouts_for_wandb
    assert len(rows) == (1 if shown == 1 else 2)


def registered(env, name, step, directory):
    env.wandb_prepend, env.curr_step, env.checkpoint_dir = name, step, str(directory)
    return env


def test_a_restarted_environment_finds_its_state_under_its_new_name_and_step(env, tmp_path):
    registered(env, "toy_0", 40, tmp_path).save_checkpoint(40, {"iter": 7})
    env.save_checkpoint(60, {"iter": 9})  # of the future, from before a trainer went back
    assert (tmp_path / "env_checkpoints" / "toy_0" / "step-40.json").read_text() == (
        '{"iter": 7}'
    )
    registered(env, "toy_1", 57, tmp_path).load_checkpoint()
    assert env.iter == 7


def test_state_under_the_current_name_is_read_before_that_of_an_earlier_name(env, tmp_path):
    registered(env, "toy_1", 5, tmp_path).save_checkpoint(5, {"iter": 1})
    registered(env, "toy_0", 5, tmp_path).save_checkpoint(5, {"iter": 2})
    registered(env, "other_0", 5, tmp_path).save_checkpoint(5, {"iter": 3})
    registered(env, "toy_1", 9, tmp_path).load_checkpoint()
    assert env.iter == 1


def test_an_unreadable_checkpoint_is_skipped(env, tmp_path, caplog):
    registered(env, "toy_0", 5, tmp_path).save_checkpoint(4, {"iter": 4})
    (tmp_path / "env_checkpoints" / "toy_0" / "step-5.json").write_text('{"iter": ')
    with caplog.at_level(logging.WARNING):
        env.load_checkpoint()
    assert env.iter == 4
    assert "step-5.json cannot be read" in caplog.text


def test_a_checkpoint_restores_data_of_the_environment_only(env, tmp_path, caplog):
    before = {name: getattr(env, name) for name in ("server", "config", "curr_step", "gate")}
    hostile = {
        "iter": 5,
        **dict.fromkeys(("server", "config", "curr_step", "pool", "cleanup"), "owned"),
        **dict.fromkeys(("_init_run", "__class__", "invented", "failures"), "owned"),
    }
    registered(env, "toy_0", 1, tmp_path).save_checkpoint(1, hostile)
    before["curr_step"] = 1
    with caplog.at_level(logging.WARNING):
        env.load_checkpoint()
    assert env.iter == 5
    assert {name: getattr(env, name) for name in before} == before
    assert not hasattr(env, "invented")
    assert caplog.text.count("is not an attribute to restore") == len(hostile) - 1


def test_data_set_before_the_constructor_of_the_base_class_can_be_restored(env, tmp_path):
    class Early(ToyEnv):
        level = 1

        def __init__(self, *args, **kwargs):
            self.cursor = 0
            super().__init__(*args, **kwargs)

    early = Early(BaseEnvConfig(), [env.server.servers[0].config])
    registered(early, "toy_0", 1, tmp_path).save_checkpoint(1, {"cursor": 3, "level": 4})
    early.load_checkpoint()
    assert (early.cursor, early.level) == (3, 4)


def test_without_data_or_directory_nothing_is_written(env, tmp_path):
    env.save_checkpoint(3, {"iter": 1})
    registered(env, "toy_0", 3, tmp_path).save_checkpoint(3)
    assert list(tmp_path.iterdir()) == []


def test_a_name_from_the_api_cannot_lead_out_of_the_directory(env, tmp_path):
    registered(env, "../../evil", 3, tmp_path / "a" / "b").save_checkpoint(3, {"iter": 1})
    assert all((tmp_path / "a" / "b") in path.parents for path in tmp_path.rglob("*.json"))
