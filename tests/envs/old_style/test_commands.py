"""Environments of the original's making run unchanged in every subcommand."""

from __future__ import annotations

import json
import sys

import pytest

from atroposlib.envs.cli import main
from tests.envs.old_style.shapes import (
    OLD_STYLE,
    HooksEnv,
    LoaderEnv,
    OverridingEnv,
    StagedEnv,
)

pytestmark = pytest.mark.filterwarnings("ignore:inference on this machine")


@pytest.mark.parametrize("env_cls", OLD_STYLE)
def test_process_writes_the_groups(env_cls, words, tmp_path, fake):
    path = tmp_path / "groups.jsonl"
    saved = ["--env.data_path_to_save_groups", str(path), "--env.total_steps", "4"]
    main(env_cls, ["process", *words, *saved])
    groups = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(groups) == 4
    for group in groups:
        assert len(group["tokens"]) == len(group["masks"]) == len(group["scores"]) == 2
        for tokens, masks in zip(group["tokens"], group["masks"]):
            assert len(tokens) == len(masks)
            assert any(label != -100 for label in masks)
            assert all(label in (-100, token) for token, label in zip(tokens, masks))
        assert group["messages"] is not None  # include_messages, as process wants it
    assert fake.requests


@pytest.mark.parametrize("env_cls", OLD_STYLE)
def test_evaluate_writes_the_results_and_the_configuration(env_cls, words, tmp_path):
    main(env_cls, ["evaluate", *words, "--env.data_dir_to_save_evals", str(tmp_path)])
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["results"]["all"] == {"eval/percent_correct": 0.5}
    assert f"atropos|{env_cls.name}_eval|0" in metrics["results"]
    assert metrics["config_general"]["model_name"] == "init"
    assert metrics["config_general"]["generation_parameters"] == {
        "max_new_tokens": 256,
        "temperature": 0.0,
    }
    (sample,) = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert json.loads(sample)["response"]
    kept = (tmp_path / "evaluate_config.yaml").read_text()
    assert words[1] in kept and "api_key" not in kept


@pytest.mark.parametrize("env_cls", OLD_STYLE)
def test_serve_fills_the_run(env_cls, words, api, tmp_path):
    with api.trainer(batch_size=4, num_steps=2) as trainer:
        main(
            env_cls,
            [
                *("serve", *words, "--env.rollout_server_url", api.url),
                *("--env.total_steps", "2", "--env.ensure_scores_are_not_same", "false"),
            ],
        )
        batch = trainer.claim(wait_s=5)
    assert sum(len(group.tokens) for group in batch.batch) == 4


def test_a_yaml_file_with_several_servers_and_cli_run_an_old_file(
    inference_url, tokenizer_dir, tmp_path, monkeypatch
):
    server = {"model_name": "m", "base_url": inference_url, "server_type": "vllm"}
    path, env = tmp_path / "groups.jsonl", {"group_size": 3, "total_steps": 2}
    env |= {"tokenizer_name": tokenizer_dir, "data_path_to_save_groups": str(path)}
    document = {"env": env, "openai": [server, server], "slurm": False, "testing": False}
    (tmp_path / "old.yaml").write_text(json.dumps(document))  # JSON is YAML
    words = ["old_env.py", "process", "--config", str(tmp_path / "old.yaml")]
    monkeypatch.setattr(sys, "argv", words)
    HooksEnv.cli()
    groups = [json.loads(line) for line in path.read_text().splitlines()]
    assert [len(group["tokens"]) for group in groups] == [3, 3]


def test_overridden_steps_of_the_runtime_run_in_their_order(words, api):
    made = []

    class Remembered(HooksEnv):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    with api.trainer(batch_size=4, num_steps=1):
        where = ["--env.rollout_server_url", api.url, "--env.total_steps", "1"]
        main(Remembered, ["serve", *words, *where])
    (env,) = made
    joined = ["register_env 0", "get_server_info 4", "setup_wandb"]
    assert env.steps[:4] == [*joined, "handle_env what is 0 + 0?"]


def test_ready_made_texts_are_sent_with_one_advantage_per_row(words, api, caplog):
    with api.trainer(batch_size=4, num_steps=1) as trainer:
        where = ["--env.rollout_server_url", api.url, "--env.total_steps", "1"]
        same = ["--env.ensure_scores_are_not_same", "false"]
        main(LoaderEnv, ["serve", *words, *where, *same])
        batch = trainer.claim(wait_s=5).batch
    assert [group.tokens for group in batch] == [[[5, 6, last]] for last in (7, 8, 9, 10)]
    assert all(group.advantages == [[1.0, 1.0, 1.0]] for group in batch)
    assert "dropped_malformed" in caplog.text


def test_a_second_stage_comes_through_the_backlog(words, tmp_path):
    path = tmp_path / "groups.jsonl"
    saved = ["--env.data_path_to_save_groups", str(path), "--env.total_steps", "6"]
    main(StagedEnv, ["process", *words, *saved, "--env.max_num_workers", "1"])
    scores = [json.loads(line)["scores"] for line in path.read_text().splitlines()]
    assert {tuple(row) for row in scores} == {(-1.0, 1.0), (-2.0, 2.0)}


def test_its_own_metrics_and_those_of_the_runtime_are_emitted(words, tmp_path):
    path = tmp_path / "metrics.jsonl"
    main(
        OverridingEnv,
        [
            *("process", *words, "--env.total_steps", "2", "--env.metrics_path", str(path)),
            *("--env.data_path_to_save_groups", str(tmp_path / "groups.jsonl")),
        ],
    )
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["train/percent_correct"] == 0.5
    assert "train/completion_lengths" in lines[0]
