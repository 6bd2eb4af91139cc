"""Files of AReaL of all kinds, each with the run that it asks for, or with its refusal."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from atroposlib.errors import ConfigError
from example_trainer.launch.areal import options
from example_trainer.launch.plan import Plan, read_plan, trainer_settings
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.files import parse_override

FILES = Path(__file__).parent / "files"
RECIPES = FILES / "recipes"
WORKFLOW_ENV = str(FILES / "workflow_env.py")
# File -> environment, loss, origin of its ratio; estimator, norm of advantages; KL; samples x
# prompts, steps; staleness; servers; nodes x ranks.
RUNS = """
grpo_sync          | gsm8k grpo sampler | grpo batch | - | 4x256 290 | 0 | sglang 4x1 | 1x4
grpo_async         | gsm8k decoupled trainer | grpo batch | - | 4x256 290 | 4 | sglang 4x1 | 1x4
grpo_recomputed    | gsm8k ppo trainer | grpo none | 0.02 reward k1 | 4x256 29 | 0 | sglang 4x1 | 1x4
ppo_critic         | gsm8k decoupled trainer | gae batch | 0.01 reward k1 | 4x256 29 | 2 | sglang 4x1 | 1x4
reinforce          | gsm8k grpo sampler | raw batch | 0.001 reward k1 | 4x256 29 | 0 | sglang 4x1 | 1x4
reinforce_pp       | gsm8k grpo sampler | reinforce_pp batch | - | 4x256 29 | 0 | sglang 4x1 | 1x4
reinforce_baseline | gsm8k grpo sampler | dr_grpo batch | 0.001 reward k2 | 4x256 29 | 0 | sglang 4x1 | 1x4
rloo               | gsm8k decoupled trainer | rloo batch | - | 4x256 29 | 2 | sglang 4x1 | 1x4
dr_grpo            | gsm8k decoupled trainer | dr_grpo none | - | 4x256 29 | 2 | sglang 4x1 | 1x4
lite_ppo           | gsm8k grpo sampler | lite_ppo none | - | 4x256 29 | 2 | sglang 4x1 | 1x4
gspo               | gsm8k gspo trainer | grpo batch | - | 4x256 29 | 2 | sglang 4x1 | 1x4
sapo               | gsm8k sapo sampler | grpo batch | - | 4x256 29 | 2 | sglang 4x1 | 1x4
m2po               | gsm8k m2po trainer | grpo batch | - | 4x256 29 | 8 | sglang 4x1 | 1x4
dapo               | gsm8k grpo sampler | grpo batch | - | 16x128 58 | 2 | sglang 4x1 | 1x4
rejection          | gsm8k decoupled trainer | grpo batch | - | 4x256 29 | 4 | sglang 4x1 | 1x4
sft_actor          | sft_loader cross_entropy trainer | grpo none | - | 1x128 174 | None | auto 1x1 | 1x8
sft_model          | sft_loader cross_entropy trainer | grpo none | - | 1x128 174 | None | auto 1x1 | 1x8
lora               | gsm8k grpo sampler | grpo none | - | 4x64 116 | 2 | vllm 4x1 | 1x4
archon             | gsm8k grpo sampler | grpo none | - | 4x128 58 | 2 | vllm 2x2 | 1x4
megatron           | gsm8k grpo sampler | grpo none | - | 4x256 29 | 2 | vllm 2x2 | 1x4
lite               | gsm8k grpo sampler | raw none | - | 1x8 934 | 0 | auto 1x1 | 1x1
boba               | gsm8k decoupled trainer | raw batch | - | 16x512 140 | 4 | sglang 96x1 | 4x8
ray                | gsm8k grpo sampler | grpo none | - | 4x256 29 | 2 | sglang 4x1 | 1x4
one_machine        | gsm8k grpo sampler | grpo none | - | 8x16 467 | 1 | local 1x1 | 1x1
penalties          | gsm8k grpo sampler | grpo none | - | 4x256 29 | 2 | sglang 4x1 | 1x4
"""
WANTED = {
    line.partition("|")[0].strip(): " | ".join(map(str.strip, line.split("|")[1:]))
    for line in RUNS.strip().splitlines()
}
# Further settings of the trainer that make a recipe.
MORE: dict[str, dict[str, object]] = {
    "grpo_sync": {"reward_scale": 10.0, "reward_bias": -0.5, "clip_eps": 0.4},
    "grpo_async": {"importance_weight": "mask", "importance_cap": 5.0, "minibatches": 1},
    "ppo_critic": {
        "critic": True,
        "critic_lr": 5e-6,
        "critic_clip_eps": 0.5,
        "minibatches": 4,
    },
    "reinforce": {"reward_clip": 20.0, "reference_model": "Qwen/Qwen2.5-1.5B-Instruct"},
    "gspo": {"clip_eps": 0.0003, "clip_eps_high": 0.0004, "importance_weight": "none"},
    "sapo": {"sapo_tau_positive": 1.0, "sapo_tau_negative": 1.05},
    "m2po": {"m2_threshold": 0.04},
    "dapo": {
        "clip_eps_high": 0.28,
        "overlong_tokens": 512,
        "overlong_penalty": 1.0,
        "max_new_tokens": 4096,
        "dynamic_filter": True,
        "mask_truncated": True,
        "seq_len": 5120,
    },
    "rejection": {
        "importance_level": "sequence",
        "importance_weight": "mask",
        "importance_cap": 2.0,
        "importance_floor": 0.5,
    },
    "sft_actor": {"lr": 2e-5, "lr_schedule": "cosine", "warmup_ratio": 0.03, "seq_len": 1024},
    "lora": {
        "lora": True,
        "lora_r": 32,
        "lora_target_modules": ["all-linear"],
        "weight_publisher": "disk",
    },
    "lite": {"lr": 2e-5, "adam_beta2": 0.95, "minibatches": 4, "reward_clip": 20.0},
    "boba": {"reward_scale": 5.0, "max_tokens_per_microbatch": 32768, "seq_len": 28672},
    "ray": {
        "trackers": ["swanlab"],
        "recover_mode": "auto",
        "recover_every_s": 3600,
        "weight_publisher": "distributed",
        "save_every_epochs": 1,
    },
}
REFUSED = {
    "dpo": "atropos train dpo --model-name Qwen/Qwen2.5-1.5B-Instruct --train-file data/pairs",
    "reward_model": "atropos train rm --model-name Qwen/Qwen2.5-7B --train-file data/pairs",
    "multi_turn": "^max_turns, n_trajs, turn_discount, export_style: AReaL has no such option;",
    "tool_use": r"^tir.\* \(3\), reward_fn_path: AReaL has no such option; .* env.KEY=VALUE",
    "search_agent": r"^max_tokens_per_trajectory, econfig.\* \(2\), judge_engine.\* \(2\): AReaL",
    "vision": "no environment is known to ask its questions; write --env",
    "evaluation": "trains nothing.*atropos infer --model Qwen.*atropos eval gsm8k --openai",
    "inference": "trains nothing.*atropos infer --model some/agent-model .*atropos eval ENV",
    "mixture": "no degrees of their own; write fsdp:d12",
    "context_parallel": "no context parallelism.*write d for c",
    "colocated": "each their own GPUs; write . for",
    "teacher": "teacher.path: environments ask the teacher",
}


@pytest.fixture(autouse=True, scope="module")
def fields_are_read_once():
    """Each environment is imported by another process, once for all files."""
    patch = pytest.MonkeyPatch()
    patch.setattr(options, "fields_of", functools.cache(options.fields_of))
    yield
    patch.undo()


def read(name: str, *words: str, env: str | None = None) -> Plan:
    overrides = [parse_override(word) for word in words]
    return read_plan([str(RECIPES / f"{name}.yaml")], overrides, env, on_cluster=True)


def summary_of(plan: Plan, cfg: TrainingConfig) -> str:
    kl = f"{cfg.kl_coef:g} {cfg.kl_in} {cfg.kl_estimator}" if cfg.kl_coef else "-"
    servers, trainer = plan.inference, plan.trainer
    parts = (
        f"{plan.environments[0].script} {cfg.loss} {cfg.ratio_to}",
        f"{cfg.advantage} {cfg.advantage_norm}",
        kl,
        f"{cfg.batch_size}x{cfg.gradient_accumulation_steps} {cfg.training_steps}",
        str(cfg.max_staleness),
        f"{servers.engine} {servers.count}x{servers.tensor_parallel}",
        f"{trainer.nodes}x{trainer.nproc}",
    )
    return " | ".join(parts)


def test_every_file_has_its_run_or_its_refusal():
    names = {path.stem for path in RECIPES.glob("*.yaml")}
    assert WANTED.keys() | REFUSED.keys() == names and len(names) == 37
    assert not WANTED.keys() & REFUSED.keys() and MORE.keys() <= WANTED.keys()


@pytest.mark.parametrize("name", WANTED)
def test_a_file_becomes_the_run_that_it_asks_for(name):
    plan = read(name)
    settings, cfg = trainer_settings(plan)
    assert summary_of(plan, cfg) == WANTED[name]
    expected = MORE.get(name, {})
    assert {key: getattr(cfg, key) for key in expected} == expected
    assert not any("nothing here reads it" in note for note in settings.notes)


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_without_a_counterpart_is_refused_with_what_to_write(name):
    with pytest.raises(ConfigError, match=REFUSED[name]):
        trainer_settings(read(name))


def test_an_environment_with_settings_of_the_workflow_s_names_reads_them():
    plan = read("multi_turn", "env.n_trajs=5", env=WORKFLOW_ENV)
    env = plan.environments[0].config["env"]
    assert (env["max_turns"], env["n_trajs"], env["export_style"]) == (3, 5, "concat")
    assert any(
        "max_turns" in note and "workflow_env.py reads it" in note for note in plan.notes
    )
    env = read("tool_use", env=WORKFLOW_ENV).environments[0].config["env"]
    assert env["tir"] == {"max_turns": 8, "tools": ["python"], "tool_timeout": 10}
    assert env["reward_fn_path"] == "my.rewards.exact"


def test_an_environment_without_them_is_named_and_null_takes_them_out():
    wrong = "workflow_env.py no setting of the name; .* write env.NAME=VALUE"
    with pytest.raises(ConfigError, match=wrong):
        read("search_agent", env=WORKFLOW_ENV)
    nulls = ["max_tokens_per_trajectory=null", "econfig=null", "judge_engine=null"]
    plan = read("search_agent", *nulls, env=WORKFLOW_ENV)
    assert plan.environments[0].script == WORKFLOW_ENV
    with pytest.raises(ConfigError, match="such as env.max_turns=9 for other.max_turns"):
        read("search_agent", *nulls, "other.max_turns=9", env=WORKFLOW_ENV)


def test_other_data_run_with_an_environment_that_asks_them():
    plan = read("vision", env="pictures")
    assert plan.environments[0].script == "pictures"
    assert "--enable-multimodal" in plan.inference.args


def test_the_local_server_refuses_penalties_before_anything_starts():
    sampling = read("penalties").environments[0].config["openai"]["sampling"]
    assert sampling["frequency_penalty"] == 0.25
    for key in ("frequency_penalty", "presence_penalty"):
        with pytest.raises(ConfigError, match=f"{key}: the local server samples without"):
            read("one_machine", f"gconfig.{key}=0.5")


def test_an_option_that_nothing_reads_is_noted_with_the_nearest_name():
    notes = "\n".join(read("lite", "gconfig.temprature=1", "rollout.agent.mode=x").notes)
    assert (
        "gconfig.temprature: nothing here reads it; did you mean gconfig.temperature" in notes
    )
    assert "rollout.agent.mode: nothing here reads it" in notes
    assert "gconfig.n_samples=1" in notes and "total_train_epochs=1" in notes


def test_degrees_of_the_trainer_besides_d_are_noted():
    notes = read("megatron").notes
    assert "allocation_mode: its ranks shard by FSDP and have no degrees p2t2" in notes


def test_containers_and_resources_of_a_cluster():
    slurm = read("boba").slurm
    assert slurm.trainer["cpus-per-task"] == 80 and slurm.srun == ["--mpi=pmi2", "-K"]
    assert slurm.container["inference"][-1] == "/images/serve.sif"
