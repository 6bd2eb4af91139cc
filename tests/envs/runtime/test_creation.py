"""Environments as processes: names from the server, and mistakes about servers and models."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi import FastAPI

from atroposlib.testing.tiny import ASCII_ALPHABET, write_tiny_model
from tests.serving import served

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 600.0
SUMS = '''
from atroposlib.envs import environment

@environment([{"id": str(n)} for n in range(64)], group_size=2, max_tokens=4)
async def sums(task, model):
    """Asks anything."""
    await model.chat(task["id"])
    return 1.0

sums.cli()
'''

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "small"
    return write_tiny_model(directory, max_positions=512, alphabet=ASCII_ALPHABET)


@pytest.fixture(scope="module")
def server(model):
    """atropos-infer, started with a relative directory."""
    words = ["--model", model.name, "--port", "0", "--threads", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "atroposlib.inference", *words],
        stdout=subprocess.PIPE,
        text=True,
        cwd=model.parent,
        env={"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
    ) as process:
        try:
            yield re.search(r"http://\S+", process.stdout.readline())[0]
        finally:
            process.kill()


def run_python(folder, *words):
    """A finished process of Python in a folder, without the hub."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


@pytest.fixture
def environment(tmp_path):
    """Run ``sums.py process`` with flags; returns status and output lines."""
    (tmp_path / "sums.py").write_text(SUMS)

    def run(url, *flags):
        words = ["process", "--openai.base_url", f"{url}/v1", "--env.total_steps", "2", *flags]
        done = run_python(tmp_path, "sums.py", *words)
        return done.returncode, done.stdout + done.stderr

    return run


def test_without_flags_model_and_tokenizer_are_those_of_the_server(server, environment, model):
    status, output = environment(server)
    assert status == 0, output
    assert f"tokenizer of the served model: {model}" in output and "wandb" not in output


def test_a_model_that_is_not_served_is_refused_with_the_served_name(server, environment):
    status, output = environment(server, "--openai.model_name", "large")
    assert status == 2
    assert "model 'large' is not served" in output and "to small, or leave it out" in output


def test_env_try_takes_both_names_from_the_server(server, tmp_path):
    (tmp_path / "sums.py").write_text(SUMS.replace("sums.cli()", ""))
    words = ["-m", "atroposlib.cli.atropos", "env", "try", "sums.py", "-n", "1"]
    done = run_python(tmp_path, *words, "--url", f"{server}/v1")
    assert done.returncode == 0, done.stderr
    assert "rollout 1 of 1" in done.stdout and "reward 1" in done.stdout


def test_the_tokenizer_of_another_model_is_refused(server, environment, tmp_path):
    other = write_tiny_model(tmp_path / "other")
    status, output = environment(server, "--env.tokenizer_name", str(other))
    assert status == 2
    assert f"tokenizer {other} is not that of model small" in output
    assert "and only the first " in output


def test_a_tokenizer_directory_that_does_not_exist_is_named(server, environment):
    status, output = environment(server, "--env.tokenizer_name", "./no-model")
    assert (status, output.count("\n")) == (2, 1) and "no directory ./no-model" in output


def test_another_server_at_the_address_is_named(environment):
    with served(FastAPI()) as url:
        status, output = environment(url)
    assert status == 2 and f"{url} answers, but is no inference server" in output


LOADER = """
from atroposlib.envs.base import BaseEnv, ServerBaseline

class Loader(BaseEnv):
    name = "loader"
    async def setup(self): pass
    async def get_next_item(self): return "a text"
    async def collect_trajectories(self, item):
        return {"tokens": [[5], [6]], "masks": [[5], [6]], "scores": [0, 1]}, []
    async def evaluate(self): await self.evaluate_log({"eval/exact": 1.0})
    @classmethod
    def config_init(cls): return cls.env_config_cls(group_size=2), ServerBaseline()

Loader.cli()
"""


@pytest.mark.parametrize("mode", ["process", "evaluate"])
def test_an_environment_that_calls_no_model_waits_for_no_server(mode, model, tmp_path):
    (tmp_path / "loader.py").write_text(LOADER)
    words = [mode, "--env.tokenizer_name", str(model), "--env.total_steps", "2"]
    done = run_python(tmp_path, "loader.py", *words)
    assert done.returncode == 0, done.stderr
    assert "waiting for" not in done.stderr


def test_an_absent_server_is_waited_for_with_its_start_command(environment, unused_tcp_port):
    url = f"http://127.0.0.1:{unused_tcp_port}"
    status, output = environment(url, "--openai.timeout", "1")
    assert status == 1
    command = f"start it: atropos-infer --model MODEL_DIR --port {unused_tcp_port}"
    assert f"waiting for inference server {url}" in output and output.count(command) >= 2
