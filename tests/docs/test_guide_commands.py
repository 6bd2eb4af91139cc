"""The commands of the original's guide, as the table of docs/migrating.md has them."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from atroposlib.envs.cli import read_settings
from environments.gsm8k_server import GSM8kEnv

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/migrating.md").read_text(encoding="utf-8")
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
# Commands that install, check the whole tree, or serve until they are ended.
NOT_RUN = {
    'pip install -e ".[dev]"',
    "pre-commit install",
    "pre-commit run --all-files",
    "pytest",
    "pytest --runproviders",
    "black .",
    "isort --profile black .",
    "flake8 --max-line-length=120",
    "run-api",
}
NEEDS_GRADIO = {"view-run", "view-run-multimodal"}
# Command, perhaps with words that shorten it -> status and text of its end.
ENDS = {
    "pytest atroposlib/tests/test_advantages.py": (0, " passed"),
    "atropos-sft-gen path/to/output.jsonl --tokenizer Qwen/Qwen2.5-1.5B-Instruct": (
        1,
        "path/to is no directory: create it first",
    ),
    "atropos-dpo-gen path/to/output.jsonl --tokenizer Qwen/Qwen2.5-1.5B-Instruct": (
        1,
        "path/to is no directory: create it first",
    ),
    "view-run": (2, "needs gradio: pip install"),
    "view-run-multimodal": (2, "needs gradio: pip install"),
    "python -m example_trainer.run": (2, "model-name"),
}


def section_of(title: str) -> str:
    parts = HEADING.split(PAGE)
    return parts[parts.index(title) + 1]


def commands() -> list[str]:
    rows = re.findall(r"^\| (`.*?`) \| ", section_of("Commands of the guide"), re.MULTILINE)
    return [command for row in rows for command in re.findall(r"`(.*?)`", row)]


def of_environment() -> list[str]:
    return [command for command in commands() if "gsm8k_server.py" in command]


def test_every_command_of_the_table_is_run_or_cannot_be():
    assert {*commands()} == NOT_RUN | ENDS.keys() | {*of_environment()}
    assert len(of_environment()) == 4


@pytest.mark.parametrize("command", ENDS)
def test_a_command_of_the_guide_ends_as_the_table_says(command):
    if command in NEEDS_GRADIO and importlib.util.find_spec("gradio"):
        pytest.skip("gradio is installed")
    program, *words = shlex.split(command)
    beside = Path(sys.executable).parent
    known = {"python": sys.executable, "pytest": f"{sys.executable} -m pytest"}
    found = known.get(program) or shutil.which(program, path=str(beside))
    if found is None:
        pytest.skip("the console scripts are not installed")
    done = subprocess.run(
        [*shlex.split(found), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    status, text = ENDS[command]
    assert (done.returncode, text in done.stdout + done.stderr) == (status, True), done


@pytest.mark.parametrize("command", of_environment())
def test_a_command_of_an_environment_has_settings_that_are_read(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    settings = read_settings(GSM8kEnv, shlex.split(command)[2:])
    if "--env.group_size 8" in command:
        assert settings.env.group_size == 8
    if " process " in command:
        assert settings.env.data_path_to_save_groups == "gsm8k_rollouts.jsonl"
    if "--slurm false" in command:
        assert settings.servers.model_name == "Qwen/Qwen2.5-1.5B-Instruct"


def test_what_stands_for_a_module_of_the_trainer_exists():
    rows = section_of("Modules of the trainer").split("|---|---|")[1]
    names = set(re.findall(r"`((?:example_trainer|atroposlib)[\w.]+)`", rows))
    assert len(re.findall(r"^\| `\w+` \| ", rows, re.MULTILINE)) == 9
    for name in names:
        import_module(name)
