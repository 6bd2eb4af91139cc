"""The package: light import, functions of the original."""

from __future__ import annotations

import subprocess
import sys

import pytest

import example_trainer
from example_trainer import TrainingConfig


def test_importing_the_package_loads_no_torch():
    code = "import sys, example_trainer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_trainer_run_as_a_module_reads_its_flags_before_it_imports_torch():
    command = [sys.executable, "-X", "importtime", "-m", "example_trainer.grpo", "--lrr=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "unknown flag --lrr" in done.stderr
    assert "| torch" not in done.stderr


@pytest.mark.parametrize(
    ("name", "mode", "publisher"),
    [
        ("train_legacy", "none", "disk"),
        ("train_shared_vllm", "shared_vllm", "shared_memory"),
        ("train_lora", "lora_only", "lora"),
        ("train_lora_restart", "lora_restart", "lora"),
    ],
)
def test_original_training_functions_are_modes_of_the_loop(name, mode, publisher, monkeypatch):
    seen = []
    monkeypatch.setattr("example_trainer.grpo.train", seen.append)
    getattr(example_trainer, name)(TrainingConfig(model_name="m", lr=0.5))
    (cfg,) = seen
    assert (cfg.weight_bridge_mode, cfg.publisher, cfg.lr) == (mode, publisher, 0.5)
