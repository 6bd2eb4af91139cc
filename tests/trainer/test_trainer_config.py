from __future__ import annotations

import subprocess
import sys

import pytest

import example_trainer
from atroposlib.errors import ConfigError
from example_trainer import TrainingConfig, parse_args
from example_trainer.settings.args import ALIASES, build_parser, flag
from example_trainer.settings.config import parse_layers

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


def test_every_setting_has_a_kebab_case_flag_and_a_sentence():
    actions = {a.dest: a for a in build_parser()._actions}
    for name, field in TrainingConfig.model_fields.items():
        assert flag(name) in actions[name].option_strings
        assert field.description


def test_flags_are_typed_by_the_model():
    argv = ["--model", "m", "--lr", "1e-3", "--use-wandb", "--checkpoint-interval", "0"]
    argv += ["--inference-urls", "http://a:1/v1", "http://b:2/", "--clip-eps-high", "0.28"]
    cfg = parse_args(argv)
    assert (cfg.lr, cfg.use_wandb, cfg.checkpoint_interval) == (1e-3, True, 0)
    assert cfg.servers == ["http://a:1", "http://b:2"]
    assert cfg.clip_eps_high == 0.28 and len(cfg.wandb_group or "") == 8


def test_aliases_of_the_original_are_kept():
    assert parse_args(["--model-name", "m"]) == parse_args(["--model", "m"])
    assert set(ALIASES.values()) == {"--model", "--gpu-memory-utilization"}


@pytest.mark.parametrize(
    ("mode", "publisher"),
    [
        ("none", "disk"),
        ("shared_vllm", "shared_memory"),
        ("lora_only", "lora"),
        ("lora_restart", "lora"),
    ],
)
def test_the_original_s_modes_are_names_of_publishers(mode, publisher):
    cfg = TrainingConfig(model_name="m", weight_bridge_mode=mode)
    assert (cfg.publisher, cfg.trains_adapter) == (publisher, publisher == "lora")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"single_copy": True}, "single_copy"),
        ({"weight_publisher": "lora", "lora": False}, "lora is false"),
        ({"critic": True}, "advantage gae"),
        ({"overlong_tokens": 8}, "max_new_tokens"),
        ({"importance_floor": 6.0}, "importance_floor"),
        ({"dual_clip": 3.0, "loss": "gspo"}, "dual_clip"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, why):
    with pytest.raises(ConfigError, match=why):
        TrainingConfig(model_name="m", **settings)


def test_an_unusable_flag_ends_with_a_sentence_and_status_2(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_args(["--model", "m", "--lr", "fast"])
    assert ended.value.code == 2
    assert "--lr: Input should be a valid number" in capsys.readouterr().err


def test_a_misspelt_setting_is_refused():
    with pytest.raises(ValueError, match="learning_rate"):
        TrainingConfig(model_name="m", learning_rate=1.0)


def test_dtype_and_tolerance_follow_the_device():
    cpu = TrainingConfig(model_name="m", device="cpu")
    cuda = TrainingConfig(model_name="m", device="cuda:1")
    assert (cpu.compute_dtype, cpu.logprob_tolerance) == ("float32", 1e-3)
    assert (cuda.compute_dtype, cuda.logprob_tolerance) == ("bfloat16", 0.2)
    chosen = TrainingConfig(model_name="m", device="cuda", dtype="float32")
    assert chosen.compute_dtype == "float32"


def test_the_original_s_restart_interval_means_publish_every():
    assert TrainingConfig(model_name="m").publish_every == 1
    assert TrainingConfig(model_name="m", vllm_restart_interval=5).publish_every == 5
    both = TrainingConfig(model_name="m", vllm_restart_interval=5, publish_every=2)
    assert both.publish_every == 2


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("20-22", [20, 21, 22]),
        ("0-1,28-29", [0, 1, 28, 29]),
        ("0,5,7", [0, 5, 7]),
        (" 3 ", [3]),
    ],
)
def test_layer_indices(text, layers):
    assert parse_layers(text) == layers


@pytest.mark.parametrize("text", ["", "5-3", "a", "1,,2"])
def test_layer_indices_that_mean_nothing_are_refused(text):
    with pytest.raises(ConfigError, match="0-3,28-31"):
        parse_layers(text)


def test_importing_the_package_loads_no_torch():
    code = "import sys, example_trainer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "mode", "publisher"),
    [
        ("train_legacy", "none", "disk"),
        ("train_shared_vllm", "shared_vllm", "shared_memory"),
        ("train_lora", "lora_only", "lora"),
        ("train_lora_restart", "lora_restart", "lora"),
    ],
)
def test_the_originals_ways_to_train_are_modes_of_the_one_loop(
    name, mode, publisher, monkeypatch
):
    seen = []
    monkeypatch.setattr("example_trainer.grpo.train", seen.append)
    getattr(example_trainer, name)(TrainingConfig(model_name="m", lr=0.5))
    (cfg,) = seen
    assert (cfg.weight_bridge_mode, cfg.publisher, cfg.lr) == (mode, publisher, 0.5)
