"""Every wrong command line and file of ``wrong_inputs.txt``: its sentence and its exit status.

$ COMMAND          words of a shell; VAR=value before them is an environment variable
NAME: TEXT         before the command: a file, on one line, or below it, indented
sentences          what is printed on stderr, without times
= 2                exit status

python -m tests.settings.test_wrong_inputs     rewrite sentences and statuses
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from atroposlib.cli import atropos, serve_api
from atroposlib.envs import cli as env_cli
from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from example_trainer import cli as trainer_cli
from example_trainer.launch import __main__ as launcher
from example_trainer.launch.plan import trainer_settings
from example_trainer.supervised import commands as supervised

TABLE = Path(__file__).with_name("wrong_inputs.txt")
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z ")
VARIABLE = re.compile(r"[A-Z_]+=.*")


class Settings(BaseEnvConfig):
    stop_words: list[str] = []


class Quiz(BaseEnv):
    """An environment with a setting of its own."""

    name = "quiz"
    env_config_cls = Settings

    @classmethod
    def config_init(cls):
        server = APIServerConfig(base_url="http://localhost:9001/v1", model_name="tiny")
        return Settings(use_wandb=False), server


@dataclass
class Case:
    """A wrong input, and what is printed for it."""

    command: str
    files: dict[str, str] = field(default_factory=dict)
    says: list[str] = field(default_factory=list)
    status: int = 0

    @property
    def text(self) -> str:
        """The lines of the table."""
        lines = []
        for name, content in self.files.items():
            first, *rest = content.splitlines()
            lines += [f"{name}: {first}"] if not rest else [f"{name}:"]
            lines += [f"    {line}" for line in content.splitlines()] if rest else []
        return "\n".join([*lines, f"$ {self.command}", *self.says, f"= {self.status}", ""])


def read_table(text: str) -> list[Case]:
    return [read_case(block) for block in text.split("\n\n") if block.strip()]


def read_case(block: str) -> Case:
    above, _, below = f"\n{block.strip()}".partition("\n$ ")
    command, *says, status = below.splitlines()
    case, name = Case(command, says=says, status=int(status.removeprefix("= "))), ""
    for line in above.splitlines():
        if line.startswith("    "):
            case.files[name] += line[4:] + "\n"
        elif line:
            name, _, content = line.partition(":")
            case.files[name] = f"{content.strip()}\n" if content else ""
    return case


def run(words: list[str]) -> None:
    """Run a command up to the moment at which its settings are accepted."""
    if words[0] == "env":
        env_cli.main(Quiz, words[1:])
    else:
        atropos.main(words)


def outcome(case: Case) -> tuple[list[str], int]:
    """The lines on stderr and the exit status, in a folder with the files of the case."""
    words = shlex.split(case.command)
    variables = [word for word in words if VARIABLE.fullmatch(word)]
    for name, content in case.files.items():
        Path(name).write_bytes(b"\xff\xfe" if content == "BINARY\n" else content.encode())
    said, status = io.StringIO(), 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for name in [name for name in os.environ if name.startswith("ATROPOS_")]:
            patch.delenv(name)
        for variable in variables:
            patch.setenv(*variable.split("=", 1))
        patch.setattr(sys, "argv", ["quiz.py"])
        patch.setattr(env_cli.EnvCommand, "run", lambda command: command.settings() and None)
        patch.setattr(trainer_cli, "main", lambda words: trainer_cli.parse_args(words) and 0)
        patch.setattr(supervised, "require", lambda *words: sys.exit(0))
        patch.setattr(
            launcher, "run_local", lambda plan, *options: bool(not trainer_settings(plan))
        )
        patch.setattr(serve_api, "serve", serve_api.require_protection)
        try:
            run(words[len(variables) :])
        except SystemExit as ended:
            status = int(ended.code or 0)
    return [TIME.sub("", line).rstrip() for line in said.getvalue().splitlines()], status


CASES = read_table(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.command)
def test_a_wrong_input_has_the_sentence_and_the_status_of_the_table(
    case, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert outcome(case) == (case.says, case.status)


def test_the_table_is_read_as_it_is_written():
    assert "\n".join(case.text for case in CASES) == TABLE.read_text(encoding="utf-8")


@contextlib.contextmanager
def new_folder() -> Iterator[None]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def rewrite() -> None:
    """Write the sentences and statuses of today."""
    for case in CASES:
        with new_folder():
            case.says, case.status = outcome(case)
    TABLE.write_text("\n".join(case.text for case in CASES), encoding="utf-8")


if __name__ == "__main__":
    rewrite()
