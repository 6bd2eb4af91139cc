"""Common flags of every command, and hints for unknown ones."""

from __future__ import annotations

import json

import pytest

from atroposlib import __version__
from atroposlib.utils.command.parser import CommandParser, common_flags, missing, require


def parser():
    made = CommandParser(prog="tool", variables=("TOKEN: of the API",))
    made.add_argument("--port", type=int)
    below = made.add_subparsers(dest="what").add_parser("local")
    below.add_argument("--count")
    return made


def error_of(capsys, *words):
    with pytest.raises(SystemExit) as stopped:
        parser().parse_args(words)
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_v_is_the_level_debug_before_and_after_a_subcommand():
    for words in (["-v"], ["--log-level", "debug"], ["local", "-v"], ["-v", "local"]):
        options = parser().parse_args(words)
        assert (options.log_level, options.log_format) == ("debug", "text")


def test_levels_and_formats_default_to_their_variables(monkeypatch, capsys):
    monkeypatch.setenv("ATROPOS_LOG_LEVEL", "warning")
    monkeypatch.setenv("ATROPOS_LOG_FORMAT", "json")
    options = parser().parse_args([])
    assert (options.log_level, options.log_format) == ("warning", "json")
    monkeypatch.setenv("ATROPOS_LOG_LEVEL", "loud")
    assert "ATROPOS_LOG_LEVEL is one of debug" in error_of(capsys)


def test_an_unknown_flag_is_one_line_with_the_nearest_one(capsys):
    assert error_of(capsys, "--prot", "1").count("\n") == 1
    assert "unknown flag --prot; did you mean --port?" in error_of(capsys, "--prot=1")
    assert "did you mean --count?" in error_of(capsys, "local", "--cuont", "1")
    assert "argument --port: invalid int value" in error_of(capsys, "--port", "x")


def test_a_usage_error_is_json_where_logs_are(capsys):
    event = json.loads(error_of(capsys, "--prot=1", "--log-format", "json"))
    assert event["process"] == "tool" and "unknown flag --prot" in event["message"]


def test_the_help_lists_variables_and_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["--help"])
    shown = capsys.readouterr().out
    assert "environment variables:\n  TOKEN: of the API\n  ATROPOS_LOG_LEVEL" in shown
    with pytest.raises(SystemExit) as stopped:
        parser().parse_args(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"tool {__version__}\n"


def test_common_flags_are_taken_out_of_any_command_line():
    words = ["serve", "-v", "--env.total_steps", "-1", "--log-format=json", "--x", "a b"]
    options, rest = common_flags("env", words)
    assert (options.log_level, options.log_format) == ("debug", "json")
    assert rest == ["serve", "--env.total_steps", "-1", "--x", "a b"]


def test_a_missing_module_is_one_line_that_names_the_extra(capsys):
    assert missing("json", "no_such_module", "no_such.module") == [
        "no_such_module",
        "no_such.module",
    ]
    require("tool", "train", "json")
    with pytest.raises(SystemExit) as stopped:
        require("tool", "train", "no_such_module")
    assert stopped.value.code == 2
    said = "tool: needs no_such_module: pip install 'atropos-rl[train]'\n"
    assert capsys.readouterr().err == said
