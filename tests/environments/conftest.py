"""Environments against the fake inference server, with texts in all of printable ASCII."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from atroposlib.cli.env_files import run_environment
from atroposlib.envs.base import APIServerConfig
from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer
from tests.environments import cases

ROOT = Path(__file__).resolve().parents[2]
STARTED = ("arithmetic", "letters")  # by `python FILE`, the others by `atropos env run` here
SERVER = """
import sys
from pathlib import Path
from atroposlib.inference.__main__ import main
from atroposlib.testing.tiny import ASCII_ALPHABET, write_tiny_model
write_tiny_model(Path(sys.argv[1]), max_positions=4096, alphabet=ASCII_ALPHABET)
words = ["--served-model-name", "fake", "--threads", "1", "--port", "0"]
sys.exit(main(["--model", sys.argv[1], *words]))
"""


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory):
    """URL and folder of a tiny model of random weights on the local inference server.

    A process; its Python may be that of another environment, since adapters need no torch.
    """
    python = os.environ.get("ATROPOS_TORCH_PYTHON", sys.executable)
    if python == sys.executable and find_spec("torch") is None:
        pytest.skip("the local inference server needs torch: make adapters")
    folder = tmp_path_factory.mktemp("tiny")
    words = [python, "-c", SERVER, str(folder)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield re.search(r"https?://\S+?:\d+", process.stdout.readline())[0], folder
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def flags_of(tmp_path):
    """Flags of an environment on a server: its rows, short replies, few tasks."""

    def make(name, url, tokenizer, reply_tokens=8):
        flags = cases.settings_of(name, tmp_path, reply_tokens)
        flags["env.tokenizer_name"] = str(tokenizer)
        flags |= {"openai.base_url": f"{url}/v1", "openai.model_name": "fake"}
        if "teacher_top_k" in cases.fields(name):
            flags |= {"teacher.base_url": f"{url}/v1", "teacher.model_name": "fake"}
            flags["teacher.tokenizer_name"] = str(tokenizer)
        return flags

    return make


@pytest.fixture
def command(monkeypatch, tmp_path, flags_of):
    """Run a mode of an environment to its end; those of STARTED as separate processes."""

    def start(name, mode, url, tokenizer, *, reply_tokens=8, **more):
        flags = flags_of(name, url, tokenizer, reply_tokens)
        flags |= {f"env.{key}": str(value) for key, value in more.items()}
        given = [mode, *(f"--{key}={value}" for key, value in flags.items())]
        if name not in STARTED:
            monkeypatch.setattr(sys, "argv", [])  # which the command replaces
            monkeypatch.chdir(tmp_path)
            assert run_environment([name, *given]) == 0
            return
        words = [sys.executable, cases.module_file(cases.ENVIRONMENTS[name]), *given]
        paths = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(words, cwd=ROOT, env=paths, timeout=600, check=True)

    return start


@pytest.fixture
def make_env(tmp_path):
    """Make an environment whose server is at ``url``; groups go to ``groups.jsonl``."""

    def make(cls, url, **settings):
        config = cls.env_config_cls(
            use_wandb=False,
            data_path_to_save_groups=str(tmp_path / "groups.jsonl"),
            data_dir_to_save_evals=str(tmp_path / "evals"),
            ensure_scores_are_not_same=False,
            include_messages=True,
            **settings,
        )
        server = APIServerConfig(base_url=f"{url}/v1", server_type="vllm", model_name="fake")
        env = cls(config, [server])
        env.tokenizer = char_tokenizer(ASCII_ALPHABET)
        return env

    return make


@pytest.fixture
def write_rows(tmp_path):
    """Write rows into a .jsonl file and give its path."""

    def write(name, rows):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


@pytest.fixture
def groups_made(tmp_path):
    """Run ``process`` and give the groups it wrote."""

    async def run(env, count):
        env.config.total_steps = count
        assert await env.process_manager() == count
        lines = (tmp_path / "groups.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    return run


@pytest.fixture
def evaluated(tmp_path):
    """Run ``setup`` and ``evaluate``, and give the metrics and the samples it wrote."""

    async def run(env):
        await env.setup()
        await env.evaluate()
        await env.close()
        metrics = json.loads((tmp_path / "evals" / "metrics.json").read_text())
        samples = tmp_path / "evals" / "samples.jsonl"
        lines = samples.read_text().splitlines() if samples.is_file() else []
        return metrics["results"]["all"], [json.loads(line) for line in lines]

    return run


@pytest.fixture
def trained_text():
    """The text of a row's trained tokens."""

    def text(env, group, row):
        return env.tokenizer.decode([m for m in group["masks"][row] if m != -100])

    return text
