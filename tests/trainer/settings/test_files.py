"""Tests of YAML files, key=value and AReaL's names: parsing and precedence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atroposlib.errors import ConfigError
from example_trainer import parse_args
from example_trainer.settings.files import (
    FIELDS,
    SECTIONS,
    parse_override,
    translate,
)
from tests.trainer.settings.conftest import given

CONFIGS = Path(__file__).resolve().parents[3] / "example_trainer" / "configs"


def refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as refused:
        translate([parse_override(word) for word in words])
    return str(refused.value)


@pytest.mark.parametrize(
    ("word", "settings"),
    [
        ("lr=1e-5", {"lr": 1e-5}),
        ("optim.lr=1e-5", {"lr": 1e-5}),
        ("+actor.optimizer.lr=1e-5", {"lr": 1e-5}),
        ("loss=gspo", {"loss": "gspo"}),
        ("loss.clip_eps=0.3", {"clip_eps": 0.3}),
        ("run_name=007", {"run_name": "007"}),
        ("run_name=12", {"run_name": "12"}),
        ("run_name=no", {"run_name": "no"}),
        ("run_name='a=b'", {"run_name": "a=b"}),
        ("max_staleness=null", {"max_staleness": None}),
        ("max_staleness=", {"max_staleness": None}),
        ("use_wandb=true", {"use_wandb": True}),
        ("trackers=tensorboard", {"trackers": ["tensorboard"]}),
        (
            "inference_urls=[http://a:1, http://b:2]",
            {"inference_urls": ["http://a:1", "http://b:2"]},
        ),
        ("train_layer_indices=0-3", {"train_layer_indices": "0-3"}),
        ("evaluation.every=5", {"eval_every_steps": 5}),
        ("evaluation.where=held", {"eval_where": "held"}),
        ("evaluation.environments=sums", {"eval_environments": ["sums"]}),
        ("evaluation_timeout_s=60", {"eval_timeout_s": 60}),
        ("evaluation.timeout_s=60", {"eval_timeout_s": 60}),
        (
            'eval_command=[python, e.py, --out, "{out}"]',
            {"eval_command": ["python", "e.py", "--out", "{out}"]},
        ),
    ],
)
def test_override_and_flag_are_equivalent(word, settings):
    assert given(word) == settings


def test_references_resolve_to_the_final_value(file):
    path = file(
        "actor.path: old\nref.path: ${actor.path}\nrun_name: ${actor.path}-${seed}-${lr}\n"
    )
    found = given("--config", path, "model_name=new", "lr=2")
    assert (found["reference_model"], found["run_name"]) == ("new", "new-0-2")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["cluster.fileroot=/x", "saver.fileroot=${cluster.fileroot}"], {"save_path": "/x"}),
        (["saver.fileroot=${cluster.fileroot}"], {"save_path": "trained_model_checkpoints"}),
        (
            [
                "cluster.fileroot=/x",
                "saver.fileroot=${cluster.fileroot}/a",
                "stats_logger.fileroot=${cluster.fileroot}/b",
            ],
            {"save_path": "/x/a", "log_dir": "/x/b"},
        ),
        (
            [
                "cluster.fileroot=/x",
                "stats_logger.fileroot=${cluster.fileroot}",
                "save_path=/y",
            ],
            {"save_path": "/y", "log_dir": "/y"},
        ),
        (
            [
                "actor.optimizer.lr=2",
                "actor.optimizer.eps=1",
                "critic.optimizer=${actor.optimizer}",
            ],
            {"lr": 2, "adam_eps": 1, "critic_lr": 2},
        ),
        (
            [
                "sglang.dtype=${nowhere}",
                "rollout.use_lora=true",
                "actor.use_lora=${rollout.use_lora}",
            ],
            {"lora": True},
        ),
    ],
)
def test_reference_is_to_the_named_key_before_another_name_of_its_setting(words, found):
    assert given(*words) == found


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["lr=${nowhere}"], "not given anywhere"),
        (["lr=${actor.pth}", "actor.path=m"], "did you mean actor.path"),
        (["lr=${adam_eps}", "adam_eps=${lr}"], "refers to itself"),
        (["learning_rate=1"], "is no setting"),
        (["optim.batch_size=1"], "did you mean .*batch.batch_size"),
        (["actor.optimiser.lr=1"], "did you mean .*actor.optimizer.lr"),
        (["actor.ppo_n_minibatch=1"], "did you mean actor.ppo_n_minibatches"),
        (["total_train_n_seqs=5"], "nothing reads it"),
        (["actor.optimizer.offload=true"], "fsdp.offload_params"),
        (["actor.optimizer.type=lion"], "not an optimizer"),
        (["teacher.path=m"], "--teacher"),
        (["actor.reward_norm.mean_level=null"], "no estimator"),
        (["actor.reward_norm.std_level=group", "critic.path=m"], "takes no reward_norm"),
        (["actor.adv_norm.mean_level=group"], "over the batch"),
        (["actor.rejection_sampling=null"], "importance_weight=none"),
        (["actor.behave_imp_weight_mode=disabled"], "importance_weight=none"),
        (["actor.rejection_sampling.metric=kl_k1"], "only the metric ratio"),
        (["actor.overlong_reward_penalty=true"], "needs overlong_tokens"),
    ],
)
def test_an_unusable_override_is_refused_with_a_reason(words, why):
    assert re.search(why, refusal(*words)), refusal(*words)


def test_every_setting_is_in_exactly_one_section():
    names = [name for model in SECTIONS.values() for name in model.model_fields]
    assert sorted(names) == sorted(FIELDS)


def test_the_example_files_load(capsys):
    lora = parse_args(["--config", str(CONFIGS / "gsm8k_lora.yaml")])
    assert (lora.publisher, lora.lora_r) == ("lora", 32)
    areal = parse_args(["--config", str(CONFIGS / "gsm8k_areal.yaml"), "actor.eps_clip=0.2"])
    assert (areal.loss, areal.advantage, areal.advantage_norm) == (
        "decoupled",
        "grpo",
        "batch",
    )
    assert (areal.sequences_per_step, areal.max_new_tokens, areal.clip_eps) == (
        1024,
        1024,
        0.2,
    )
    assert "note: sglang.context_length" in capsys.readouterr().err
