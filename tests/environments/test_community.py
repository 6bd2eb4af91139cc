"""Environments of environments/community: found by their folders, each with a card that holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from atroposlib.cli.env_files import load as load_file
from atroposlib.envs.function_env.card import play
from atroposlib.envs.function_env.data import load as load_rows
from atroposlib.testing.tiny import write_tiny_model
from atroposlib.utils.command.startup import CHECK_ONLY
from tests.environments.cases import ADVERSARIAL

ROOT = Path(__file__).parents[2]
COMMUNITY = ROOT / "environments/community"
FOLDERS = sorted(path.name for path in COMMUNITY.iterdir() if (path / "README.md").is_file())
TASKS = 40


@pytest.fixture(params=FOLDERS)
def env_cls(request):
    return load_file(str(COMMUNITY / request.param / f"{request.param}.py"))


async def tasks_of(env_cls):
    config = env_cls.env_config_cls()
    rows = await load_rows(env_cls.definition.dataset, config, env=env_cls.name, split="train")
    return [task for task, _ in zip(rows, range(TASKS))]


async def score(env_cls, task, replies):
    return (await play(env_cls, task, replies))[0].score


async def test_gold_replies_get_the_best_score_and_wrong_replies_the_least(env_cls):
    card = env_cls.definition.card
    for task in await tasks_of(env_cls):
        assert await score(env_cls, task, card.gold(task)) == card.best, task
        for reply in card.wrong(task):
            assert await score(env_cls, task, reply) <= card.floor, reply


@pytest.mark.parametrize("reply", ADVERSARIAL)
async def test_adversarial_replies_get_no_more_than_the_floor(env_cls, reply):
    for task in (await tasks_of(env_cls))[:2]:
        replies = [ADVERSARIAL[reply]] * 8
        assert await score(env_cls, task, replies) <= env_cls.definition.card.floor


def test_every_folder_is_in_the_table_of_its_page():
    page = (COMMUNITY / "README.md").read_text(encoding="utf-8")
    assert FOLDERS and [name for name in FOLDERS if f"`{name}/`" not in page] == []


@pytest.mark.parametrize(
    "words", [[], ["--env.group_size", "8"]], ids=["file", "file and flag"]
)
def test_the_example_file_is_accepted_as_the_guide_writes_the_command(words, tmp_path):
    """Beside the guide's words only the tokenizer is another: it needs no network."""
    command = ["environments/gsm8k_server.py", "serve"]
    command += ["--config", "environments/configs/example.yaml", *words]
    command += ["--env.tokenizer_name", str(write_tiny_model(tmp_path / "model"))]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, CHECK_ONLY: "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
