"""A run of AReaL's file, read with a look at its environment and its data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atroposlib.errors import ConfigError
from example_trainer.launch.__main__ import parse, plan_of
from example_trainer.launch.plan import read_plan, trainer_settings
from example_trainer.settings.files import parse_override

FILES = Path(__file__).parent / "files"
WORDS_ENV = str(FILES / "words_env.py")


@pytest.fixture
def data(tmp_path) -> Path:
    lines = [{"question": f"{n}?", "answer": f"#### {n}"} for n in range(6)]
    (tmp_path / "gsm8k.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return tmp_path / "gsm8k.jsonl"


def read(name: str, *words: str, env: str | None = None):
    overrides = [parse_override(word) for word in ("actor.path=m", *words)]
    return read_plan([str(FILES / f"{name}.yaml")], overrides, env)


def test_one_file_is_the_plan_of_a_whole_run(data):
    plan = read("grpo", f"train_dataset.path={data}", "env.eval_problems=2")
    (environment,) = plan.environments
    env = environment.config["env"]
    assert (environment.script, env["dataset_path"]) == ("gsm8k", str(data))
    assert (env["temperature"], env["group_size"], env["eval_problems"]) == (0.9, 2, 2)
    assert (plan.name, plan.out) == ("gsm8k-grpo_first", "runs/gsm8k-grpo/first")
    settings, cfg = trainer_settings(plan)
    assert (cfg.training_steps, cfg.steps_per_epoch, cfg.seq_len) == (3, 3, 524)
    assert cfg.save_path.endswith("runs/gsm8k-grpo/first/checkpoints")
    sections = [note.partition(":")[0] for note in settings.notes]
    assert len(sections) == len(set(sections)) and "sglang.* (2)" not in sections[1:]


def test_the_environment_of_the_command_line_counts(data):
    plan = read("lora", f"train_dataset.path={data}", env=WORDS_ENV)
    env = plan.environments[0].config["env"]
    assert (plan.environments[0].script, env["max_tokens"]) == (WORDS_ENV, 6)
    assert plan.environments[0].config["openai"]["sampling"]["min_tokens"] == 2
    assert env["eval_at_start"] and env["eval_temperature"] == 0.0
    assert "use_wandb" in env and plan.inference.count == 1


def test_keys_of_the_plan_stand_above_those_of_areal(data):
    plan = read(
        "async", f"train_dataset.path={data}", "inference.count=1", "lr=2", env=WORDS_ENV
    )
    assert (plan.inference.count, plan.inference.engine) == (1, "local")
    assert trainer_settings(plan)[1].lr == 2


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--env", "gsm8k", "--config", "FILE", "actor.lrr=1"], "actor.lrr .*did you mean"),
        (["--config", "FILE", "train_dataset.path=clevr"], "write --env"),
        (["--config", "FILE", "environments=[]"], "write --env, and env.NAME"),
        (["--env", "nothing", "--config", "FILE"], "no environment 'nothing'"),
    ],
)
def test_a_mistake_is_an_error_that_says_what_to_write(words, wrong):
    words = [str(FILES / "grpo.yaml") if word == "FILE" else word for word in words]
    with pytest.raises(ConfigError, match=wrong):
        plan_of(parse(words))


def test_env_goes_with_a_file_of_areal_only(tmp_path):
    (tmp_path / "run.yaml").write_text("environments: [{script: x.py}]\n")
    with pytest.raises(ConfigError, match="environments.script"):
        plan_of(parse(["local", "--config", str(tmp_path / "run.yaml"), "--env", "gsm8k"]))
