"""Environments by name or file: the list, and the class that a word leads to."""

from __future__ import annotations

import json
import sys

import pytest

from atroposlib import __version__
from atroposlib.cli import env_files
from atroposlib.errors import ConfigError, RolloutError
from atroposlib.utils.command.references import Listed

ENVIRONMENT = """
from atroposlib.envs import environment

@environment(["a"])
async def {name}(task, model):
    return 1.0
"""


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["atropos"])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("written_"):
            del sys.modules[name]


def test_the_list_has_every_shipped_environment_and_imports_none(capsys):
    for name in [name for name in sys.modules if name.endswith("copy_server")]:
        del sys.modules[name]
    assert env_files.print_list(["--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["copy"]["module"] == "atroposlib.environments.copy_server"
    assert found["copy"]["about"].startswith("Copy a short word")
    assert {"gsm8k", "arithmetic", "gymnasium", "mcqa_thinking"} <= set(found)
    assert found["textarena"]["module"] == "atroposlib.adapters.textarena"
    assert "mcp" not in found  # makes environments, and is none
    assert "atroposlib.environments.copy_server" not in sys.modules


def test_the_list_is_a_line_for_each_name(capsys):
    assert env_files.print_list([]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["gymnasium"].endswith("played turn by turn")


def test_environments_of_the_library_are_listed_and_found_by_name():
    assert "letters" in [one.name for one in env_files.list_environments()]
    assert env_files.load("letters").name == "letters"


def test_two_environments_of_one_name_are_listed_with_their_packages(monkeypatch, capsys):
    theirs = Listed("copy", "copies", "Theirs", "copies", "1.2", "text")
    broken = Listed("wordle", "wordle", "", "wordle", "0.1", problem="its module is missing")
    monkeypatch.setattr(
        env_files.references, "installed_environments", lambda: [theirs, broken]
    )
    env_files.print_list([])
    printed = " ".join(capsys.readouterr().out.split())
    assert "atroposlib:copy " in printed
    assert "copies:copy text Theirs (copies 1.2)" in printed
    assert "wordle cannot be used: its module is missing (wordle 0.1)" in printed
    with pytest.raises(ConfigError, match="write atroposlib:copy or copies:copy"):
        env_files.load("copy")
    assert env_files.load("atroposlib:copy").name == "copy"


def test_a_reference_to_an_adapter_names_its_game():
    game = env_files.load("gymnasium:Taxi-v4")
    assert game.name == "gymnasium" and game.config_init()[0].env_id == "Taxi-v4"
    assert env_files.load("gymnasium").config_init()[0].env_id == "FrozenLake-v1"
    sums = env_files.load("reasoning_gym:basic_arithmetic")
    assert sums.config_init()[0].dataset_name == "basic_arithmetic"


def test_info_prints_package_card_and_settings(capsys):
    assert env_files.print_info(["letters"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for text in (f"package atroposlib {__version__}", "digest sha256:", "licence PSF-2.0"):
        assert text in printed
    assert "--env.backwards 0.5 share of phrases to turn round" in printed


@pytest.mark.parametrize("name", ["copy", "copy_server"])
def test_a_shipped_environment_is_found_with_or_without_its_suffix(name):
    assert env_files.load(name).name == "copy"


def test_a_file_gives_its_one_environment(tmp_path):
    file = tmp_path / "written_a.py"
    file.write_text(ENVIRONMENT.format(name="one"))
    assert env_files.load(str(file)).name == "one"


def test_a_file_named_like_a_standard_module_does_not_replace_it(tmp_path):
    import copy

    file = tmp_path / "copy.py"
    file.write_text(ENVIRONMENT.format(name="one"))
    assert env_files.load(str(file)).__module__ == "env_copy"
    assert sys.modules["copy"] is copy


def test_a_file_of_several_environments_needs_the_name_of_one(tmp_path):
    file = tmp_path / "written_b.py"
    file.write_text(ENVIRONMENT.format(name="one") + ENVIRONMENT.format(name="two"))
    with pytest.raises(ConfigError, match=r"several environments \(one, two\)"):
        env_files.load(str(file))
    assert env_files.load(f"{file}:two").name == "two"


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("gsm8", "did you mean gsm8k"),
        ("nothing.py", "no such file"),
        ("tests/cli/test_env_files.py", "no environment in this file"),
    ],
)
def test_a_word_that_leads_nowhere_is_an_error(word, text):
    with pytest.raises(ConfigError, match=text):
        env_files.load(word)


def test_an_error_of_the_file_names_it(tmp_path):
    file = tmp_path / "written_c.py"
    file.write_text("import written_nonsense\n")
    with pytest.raises(RolloutError, match=r"written_c\.py"):
        env_files.load(str(file))


def test_run_and_eval_pass_their_words_to_the_environment(tmp_path, capsys):
    file = tmp_path / "written_d.py"
    file.write_text(ENVIRONMENT.format(name="one"))
    with pytest.raises(SystemExit) as ended:
        env_files.run_environment([str(file), "process", "--env.groupsize", "2"])
    assert ended.value.code == 2
    assert "did you mean --env.group_size?" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        env_files.evaluate([str(file), "--env.total_step", "2"])
    assert ended.value.code == 2 and "total_steps" in capsys.readouterr().err


def test_run_without_an_environment_shows_its_usage(capsys):
    assert env_files.run_environment([]) == 2
    assert env_files.evaluate(["--help"]) == 0
    assert "usage: atropos eval" in capsys.readouterr().out


def test_the_launcher_gets_the_names_of_an_environment_s_settings(capsys):
    env_files.print_settings("gsm8k")
    fields = json.loads(capsys.readouterr().out)["fields"]
    assert {"group_size", "dataset_path", "temperature"} <= {*fields}
    with pytest.raises(SystemExit, match="no environment 'gsm9k'"):
        env_files.print_settings("gsm9k")
