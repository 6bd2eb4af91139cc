"""Plug-ins: where a name leads, what is checked before the start, what a run records."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from atroposlib.errors import ConfigError
from atroposlib.utils.command import plugins
from atroposlib.utils.command.plugins import LOSS, REWARD, TRACKER, PluginError


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder of plug-ins as working directory; writes a file into it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(text, name="mine.py"):
        (tmp_path / name).write_text(text, encoding="utf-8")

    return write


@pytest.fixture
def installed(monkeypatch):
    """An entry point ``soft`` of the group of losses."""
    point = SimpleNamespace(
        value="mine_of_package:soft", dist=SimpleNamespace(name="softer", version="1.2")
    )
    monkeypatch.setattr(
        plugins, "_entry_points", lambda group: {"soft": point} if group == LOSS.group else {}
    )


def test_a_built_in_name_is_no_plugin():
    assert plugins.target_of(LOSS, "grpo", ["grpo", "gspo"]) is None


@pytest.mark.parametrize("name", ["mine.py:loss", "package.module:loss"])
def test_a_reference_is_its_own_target(name):
    assert plugins.target_of(LOSS, name, ["grpo"]) == name


def test_an_entry_point_leads_to_its_function(installed):
    assert plugins.target_of(LOSS, "soft", ["grpo"]) == "mine_of_package:soft"


@pytest.mark.parametrize("name, meant", [("grp", "grpo"), ("sofd", "soft")])
def test_an_unknown_name_gets_the_nearest_built_in_or_entry_point(installed, name, meant):
    with pytest.raises(ConfigError) as refused:
        plugins.target_of(LOSS, name, ["grpo"])
    assert f"did you mean {meant}?" in str(refused.value)
    assert "there are: grpo, soft; or write MODULE:FUNCTION, path/FILE.py:FUNCTION" in str(
        refused.value
    )


def test_a_file_and_a_module_of_the_working_directory_are_loaded(mine):
    mine("def loss(batch, settings):\n    return batch, settings\n", "plain_plugin.py")
    for name in ("plain_plugin.py:loss", "plain_plugin:loss"):
        assert plugins.load_plugin(LOSS, name)(1, 2) == (1, 2)


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("import no_such_package_x\n", "mine.py:1: ModuleNotFoundError: No module named"),
        ("def loss(:\n", "SyntaxError: invalid syntax (mine.py, line 1)"),
        ("1 / 0\n", "mine.py:1: ZeroDivisionError: division by zero, in `1 / 0`"),
        ("def lost():\n    pass\n", "no 'loss' in mine.py; did you mean lost?"),
        ("loss = 3\n", "loss is no function"),
        ("def loss(batch):\n    pass\n", "mine.py:1: loss mine.py:loss has to take (batch, s"),
        ("def loss(a, b, c):\n    pass\n", "missing a required argument: 'c'"),
        ("async def loss(a, b):\n    pass\n", "write `def`, not `async def`"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_line(mine, text, sentence):
    mine(text)
    with pytest.raises(ConfigError) as refused:
        plugins.load_plugin(LOSS, "mine.py:loss")
    assert sentence in str(refused.value)


def test_a_missing_file_is_refused_with_the_working_directory(mine, tmp_path):
    with pytest.raises(ConfigError, match=f"none.py: no such file in {tmp_path}"):
        plugins.load_plugin(LOSS, "none.py:loss")


def test_an_error_in_a_call_names_the_line_of_the_plugin(mine):
    mine("def loss(batch, settings):\n    return batch / 0\n")
    with pytest.raises(PluginError, match=r"mine.py:2: ZeroDivisionError.*`return batch / 0`"):
        plugins.load_plugin(LOSS, "mine.py:loss")(1, 2)


def test_a_reward_may_take_columns_of_its_own(mine):
    mine("def right(completions, answer):\n    return [answer]\n")
    assert plugins.load_plugin(REWARD, "mine.py:right")(["a"], answer=1) == [1]


def test_a_class_is_returned_as_it_stands(mine):
    mine("class Tracker:\n    def __init__(self, run):\n        self.run = run\n")
    assert plugins.load_plugin(TRACKER, "mine.py:Tracker")("run").run == "run"


def test_a_run_records_the_target_and_the_digest_of_the_code(mine, tmp_path):
    mine("def loss(batch, settings):\n    pass\n", "digested.py")
    recorded = plugins.record_of(LOSS, "digested.py:loss")
    assert (recorded.group, recorded.target) == ("atroposlib.losses", "digested.py:loss")
    mine("def loss(batch, settings):\n    return 1\n", "digested.py")
    assert plugins.record_of(LOSS, "digested.py:loss").digest != recorded.digest


def test_an_entry_point_is_recorded_with_its_package(installed, mine):
    mine("def soft(batch, settings):\n    pass\n", "mine_of_package.py")
    assert plugins.record_of(LOSS, "soft").package == "softer 1.2"


def test_the_command_prints_the_records_or_one_line(mine, capsys):
    mine("def loss(batch, settings):\n    pass\n", "printed.py")
    assert plugins.main(["atroposlib.losses=printed.py:loss"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "printed.py:loss"
    assert plugins.main(["atroposlib.losses=printed.py:los"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
