"""Defaults, contradictions and derived values of TrainingConfig."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import example_trainer
from atroposlib.errors import ConfigError
from example_trainer import TrainingConfig

ORIGINAL_DEFAULTS = {
    "lr": 1e-5,
    "training_steps": 10,
    "batch_size": 2,
    "seq_len": 2048,
    "gradient_accumulation_steps": 32,
    "warmup_steps": 0,
    "optimizer": "adamw_8bit",
    "adafactor_scale_parameter": False,
    "adafactor_relative_step": False,
    "clip_eps": 0.2,
    "save_path": "trained_model_checkpoints",
    "checkpoint_interval": 3,
    "vllm_restart_interval": 3,
    "vllm_port": 9001,
    "vllm_gpu": None,
    "vllm_gpu_memory_utilization": 0.45,
    "max_model_len": 4096,
    "use_wandb": False,
    "wandb_project": None,
    "wandb_group": None,
    "weight_bridge_mode": "none",
    "train_layer_indices": None,
    "trainer_rank": 0,
    "world_size": 1,
    "init_method": "env://",
    "num_inference_nodes": 0,
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "lora_target_modules": None,
    "lora_layer_indices": None,
    "single_copy": False,
    "vllm_config_path": None,
    "debug_loading": False,
    "benchmark": False,
    "atropos_url": "http://localhost:8000",
    "log_dir": "./logs",
}


def test_settings_of_the_original_keep_their_defaults():
    cfg = TrainingConfig(model_name="m")
    assert {name: getattr(cfg, name) for name in ORIGINAL_DEFAULTS} == ORIGINAL_DEFAULTS
    assert cfg.sequences_per_step == 64


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"single_copy": True}, "single_copy"),
        ({"weight_publisher": "lora", "lora": False}, "lora is false"),
        ({"critic": True}, "advantage gae"),
        ({"overlong_tokens": 8}, "max_new_tokens"),
        ({"importance_floor": 6.0}, "importance_floor"),
        ({"dual_clip": 3.0, "loss": "gspo"}, "dual_clip"),
        ({"optimizer_offload": True, "optimizer": "sgd"}, "the optimizer is sgd"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, why):
    with pytest.raises(ConfigError, match=why):
        TrainingConfig(model_name="m", **settings)


def test_the_original_s_restart_interval_means_publish_every():
    assert TrainingConfig(model_name="m").publish_every == 1
    assert TrainingConfig(model_name="m", vllm_restart_interval=5).publish_every == 5
    both = TrainingConfig(model_name="m", vllm_restart_interval=5, publish_every=2)
    assert both.publish_every == 2


def test_every_setting_is_read_or_says_that_it_is_only_accepted():
    package = Path(example_trainer.__file__).parent
    text = "\n".join(path.read_text() for path in package.rglob("*.py"))
    fields = TrainingConfig.model_fields
    unread = {name for name in fields if not re.search(rf"[.]{name}\b", text)}
    assert unread == {"lora_dropout", "num_inference_nodes"}
    assert all(
        "accepted for the original's sake" in fields[name].description for name in unread
    )
