"""A scaffolded environment: its files, its own tests, and names that cannot be used."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from atroposlib.cli import env_files, env_new
from atroposlib.cli.env_validate import validate
from atroposlib.envs.cli import read_settings
from atroposlib.errors import ConfigError
from example_trainer.launch.plan import read_plan, trainer_settings
from example_trainer.launch.roles import Endpoints, environment_settings

AT = Endpoints("http://127.0.0.1:8000", ("http://127.0.0.1:9001",))

FILES = {
    "wordle.py",
    "test_wordle.py",
    "gold.jsonl",
    "pyproject.toml",
    "README.md",
    "train.yaml",
}

FILES_OF_A_CLASS = {"sums.py", "test_sums.py", "pyproject.toml", "README.md", "train.yaml"}


def test_the_package_passes_its_own_tests_and_names_the_next_commands(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert env_new.main(["wordle"]) == 0
    folder = tmp_path / "wordle"
    assert {path.name for path in folder.iterdir()} == FILES
    assert "atropos env try wordle.py" in capsys.readouterr().out
    for path in folder.iterdir():
        assert env_new.PLACEHOLDER not in path.read_text(encoding="utf-8"), path
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=paths)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout and "warning" not in done.stdout.lower()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [env_new.QUESTION, "tools", "game", "class"])
async def test_every_kind_passes_its_checks_without_a_warning(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    files = env_new.write_project(f"written_{kind}", tmp_path, kind)
    assert {f"written_{kind}.py", f"test_written_{kind}.py", "README.md"} <= set(files)
    report = await validate(str(tmp_path / f"written_{kind}.py"))
    assert report.passed(strict=True), report.table()
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "<<" not in readme and "| MIT |" not in readme


@pytest.mark.slow
def test_a_class_passes_its_own_tests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert env_new.main(["sums", "--class"]) == 0
    assert {path.name for path in (tmp_path / "sums").iterdir()} == FILES_OF_A_CLASS
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd="sums", capture_output=True, text=True, env=paths)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout and "warning" not in done.stdout.lower()


def test_the_launcher_takes_the_training_run_as_it_is(tmp_path, monkeypatch):
    env_new.write_project("written_game", tmp_path)
    monkeypatch.chdir(tmp_path)
    plan = read_plan(["train.yaml"])
    _, trainer = trainer_settings(plan)
    settings = environment_settings(plan, 0, trainer, AT)["env"]
    assert trainer.sequences_per_step % settings["group_size"] == 0
    assert settings["max_token_length"] <= trainer.seq_len <= trainer.microbatch_tokens
    (tmp_path / "env.yaml").write_text(json.dumps({"env": settings}))
    given = read_settings(env_files.load("written_game.py"), ["serve", "--config", "env.yaml"])
    assert given.env.rollout_server_url == AT.api
    assert given.env.max_tokens < given.env.max_token_length


def test_a_dash_in_the_name_becomes_an_underscore_in_the_module(tmp_path):
    assert "my_game.py" in env_new.write_project("my_game", tmp_path / "my-game")


@pytest.mark.parametrize("name", ["class", "2048", "json", "a b"])
def test_a_name_that_cannot_be_imported_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="cannot name an environment"):
        env_new.write_project(name, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_folder_with_files_is_never_written_to(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        env_new.write_project("wordle", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_a_loss_passes_its_own_tests_and_names_the_next_commands(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert env_new.write_loss(["soft-clip"]) == 0
    folder = tmp_path / "soft-clip"
    names = {"soft_clip.py", "test_soft_clip.py", "pyproject.toml", "README.md"}
    assert {path.name for path in folder.iterdir()} == names
    assert "loss.loss=soft-clip/soft_clip.py:loss" in capsys.readouterr().out
    for path in folder.iterdir():
        assert env_new.PLACEHOLDER not in path.read_text(encoding="utf-8"), path
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=paths)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout and "warning" not in done.stdout.lower()
