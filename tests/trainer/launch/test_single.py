from __future__ import annotations

import subprocess
import sys

import pytest

from atroposlib.errors import ConfigError
from example_trainer import TrainingConfig
from example_trainer.launch.single import server_process


def test_the_original_s_command_starts_one_server_for_the_trainer():
    cfg = TrainingConfig(model_name="m", inference_engine="local", vllm_port=9123)
    spec = server_process(cfg)
    assert spec.health_url == "http://localhost:9123/health"
    assert spec.argv[1:3] == ("-m", "atroposlib.inference")
    with pytest.raises(ConfigError, match="use atropos-grpo"):
        server_process(TrainingConfig(model_name="m", inference_urls=["http://a:1"]))


def test_the_form_of_the_original_is_the_same_command():
    command = [sys.executable, "-m", "example_trainer.run", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "atropos-grpo-run" in done.stdout
