"""The command atropos as a process: help, unknown words, completion, and its subcommands."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

from atroposlib import __version__
from atroposlib.cli.atropos import COMMANDS, Existing, cli

HEAVY = {"torch", "transformers", "pydantic", "httpx", "numpy", "fastapi"}


def atropos(*words, **options):
    command = [sys.executable, "-m", "atroposlib.cli.atropos", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)


def test_the_help_fits_a_terminal_and_names_every_command():
    done = atropos("--help")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) <= 24
    assert max(map(len, done.stdout.splitlines())) <= 80
    for name in {words.split()[0] for words in COMMANDS} | {"version", "completion"}:
        assert f"\n  {name} " in done.stdout


def test_the_command_tree_is_built_without_the_modules_of_its_commands():
    code = "import sys, atroposlib.cli.atropos; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert not HEAVY & loaded
    assert not {target.split(":")[0] for target, _ in COMMANDS.values()} & loaded


@pytest.mark.parametrize("words", COMMANDS)
def test_every_subcommand_leads_to_a_function_of_its_words(words):
    module, _, name = COMMANDS[words][0].partition(":")
    assert find_spec(module), module
    assert callable(getattr(import_module(module), name))


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["quikstart"], "quickstart"), (["env", "lst"], "list"), (["train", "gpro"], "grpo")],
)
def test_an_unknown_word_gets_the_nearest_one_and_exit_status_2(words, meant):
    done = atropos(*words)
    assert done.returncode == 2
    assert f"; did you mean {meant}?" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_words_after_a_subcommand_reach_it_unread():
    done = atropos("api", "serve", "--help")
    assert done.returncode == 0 and "--data-dir" in done.stdout
    done = atropos("api", "serve", "--no-such-flag")
    assert done.returncode == 2 and "--no-such-flag" in done.stderr


def test_a_verb_of_a_command_has_a_function_of_its_own(tmp_path):
    done = atropos("run", "diff", "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: atropos run diff")
    done = atropos("run", "diff", str(tmp_path), str(tmp_path))
    assert done.returncode == 2 and "is no folder of a run" in done.stderr
    assert "atropos run diff" in atropos("run", "--help").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_calls_the_command(shell):
    done = atropos("completion", shell)
    assert done.returncode == 0 and "_ATROPOS_COMPLETE" in done.stdout


def test_the_completion_lists_the_verbs_of_a_noun():
    asked = {
        "_ATROPOS_COMPLETE": "bash_complete",
        "COMP_WORDS": "atropos env ",
        "COMP_CWORD": "2",
    }
    code = "from atroposlib.cli.atropos import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=asked
    )
    assert [line.split(",")[1] for line in done.stdout.split()] == [
        "new",
        "try",
        "run",
        "list",
        "validate",
        "export",
        "info",
        "tasks",
        "openenv",
    ]


def test_the_version_is_printed_alone_and_with_those_of_other_packages():
    assert atropos("--version").stdout == f"atropos {__version__}\n"
    assert f"python {sys.version.split()[0]}" in atropos("version").stdout


@pytest.mark.parametrize(
    ("raised", "status", "text"),
    [
        ("raise KeyboardInterrupt", 130, ""),
        ("raise OSError('disk is full')", 1, "error: disk is full\n"),
        ("raise ConfigError('no such thing')", 2, "error: no such thing\n"),
    ],
)
def test_an_error_of_a_subcommand_is_one_line(
    tmp_path, monkeypatch, capsys, raised, status, text
):
    source = f"from atroposlib.errors import ConfigError\ndef main(words):\n    {raised}\n"
    (tmp_path / "raising_command.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(cli.commands, "fails", Existing("fails", "raising_command:main", ""))
    monkeypatch.delitem(sys.modules, "raising_command", raising=False)
    with pytest.raises(SystemExit) as ended:
        cli(["fails"], prog_name="atropos")
    assert (ended.value.code, capsys.readouterr().err) == (status, text)
