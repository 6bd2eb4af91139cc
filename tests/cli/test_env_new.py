"""A scaffolded environment: its files, its own tests, and names that cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from atroposlib.cli import env_new
from atroposlib.errors import ConfigError

FILES = {"wordle.py", "test_wordle.py", "gold.jsonl", "pyproject.toml", "README.md"}


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
    assert "2 passed" in done.stdout


def test_a_dash_in_the_name_becomes_an_underscore_in_the_module(tmp_path):
    assert "my_game.py" in env_new.write("my_game", tmp_path / "my-game")


@pytest.mark.parametrize("name", ["class", "2048", "json", "a b"])
def test_a_name_that_cannot_be_imported_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="cannot name an environment"):
        env_new.write(name, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_folder_with_files_is_never_written_to(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        env_new.write("wordle", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
