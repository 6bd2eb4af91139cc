"""Environments against the fake inference server, with texts in all of printable ASCII."""

from __future__ import annotations

import json

import pytest

from atroposlib.envs.base import APIServerConfig
from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer


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
