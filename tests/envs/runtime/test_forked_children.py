"""Environments that fork in ``process`` and ``serve``."""

from __future__ import annotations

import signal
import subprocess
import sys

import httpx
import pytest

from tests.api.harness import TRAINER
from tests.api.processes import serving

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-m", "tests.envs.function_env.forking_env"]
SETTINGS = [
    "--env.group_size=2",
    "--env.use_wandb=false",
    "--openai.model_name=fake",
    "--openai.server_type=vllm",
]


def test_process_writes_every_group(inference_url, tmp_path):
    groups = tmp_path / "groups.jsonl"
    ended = subprocess.run(
        [
            *COMMAND,
            "process",
            *SETTINGS,
            f"--openai.base_url={inference_url}",
            f"--env.data_path_to_save_groups={groups}",
            "--env.total_steps=3",
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    assert len(groups.read_text().splitlines()) == 3
    assert "SIGTERM" not in ended.stderr and "SIGINT" not in ended.stderr


def test_serve_goes_on_until_its_own_signal(inference_url, tmp_path):
    with serving(tmp_path, "--store", "memory") as (_, api):
        httpx.post(f"{api}/register", json=TRAINER | {"checkpoint_dir": ""}).raise_for_status()
        httpx.get(f"{api}/batch").raise_for_status()
        with subprocess.Popen(
            [
                *COMMAND,
                "serve",
                *SETTINGS,
                f"--openai.base_url={inference_url}",
                f"--env.rollout_server_url={api}",
            ],
            stderr=subprocess.PIPE,
            text=True,
        ) as serve:
            while httpx.get(f"{api}/status").json()["queue_size"] < 6:
                assert serve.poll() is None, serve.stderr.read()
            serve.send_signal(signal.SIGTERM)
            _, log = serve.communicate(timeout=600)
    assert (serve.returncode, log.count("SIGTERM")) == (0, 1), log
