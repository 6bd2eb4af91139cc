"""A port outside of 0 to 65535 is refused by every command that takes one, in the same words."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import atroposlib
import example_trainer

PACKAGES = (atroposlib, example_trainer)
FLAG = re.compile(r'"(--[a-z-]*port)"')
# Module with the command, the words before the flag, the flag.
COMMANDS = [
    ("atroposlib.cli.run_api", [], "--port"),
    ("atroposlib.cli.view", ["runs"], "--port"),
    ("atroposlib.cli.view_run", [], "--port"),
    ("atroposlib.workbench.command_line", ["runs"], "--port"),
    ("atroposlib.cli.export.openenv", ["env.py"], "--port"),
    ("atroposlib.generation.proxy.main", [], "--port"),
    ("atroposlib.inference.__main__", ["--model", "m"], "--port"),
    ("example_trainer.quickstart.__main__", [], "--port"),
    ("example_trainer.quickstart.__main__", [], "--api-port"),
]


MAINS = {"atroposlib.cli.view": "view", "atroposlib.workbench.command_line": "ui"}


@pytest.mark.parametrize("port", ["99999", "-1", "65536", "x", "8000.5"])
@pytest.mark.parametrize("module, words, flag", COMMANDS)
def test_every_command_refuses_a_port_out_of_range(module, words, flag, port, capsys):
    command = import_module(module)
    main = getattr(command, MAINS.get(module, "main"))
    with pytest.raises(SystemExit) as ended:
        main([*words, f"{flag}={port}"])
    error = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2 and flag in error and port in error
    assert any(words in error for words in ("65535", "whole number", "at least 0"))


def test_every_flag_for_a_port_is_in_the_table():
    named = {module for module, _, _ in COMMANDS}
    writes = {
        "example_trainer.launch.roles",
        "example_trainer.launch.servers",
        "atroposlib.travel.replay",
    }  # command lines
    for package in PACKAGES:
        root = Path(package.__file__).parent
        for path in root.rglob("*.py"):
            module = ".".join(path.relative_to(root.parent).with_suffix("").parts)
            module = module.removesuffix(".__init__")
            if FLAG.search(path.read_text(encoding="utf-8")) and module not in writes:
                assert module in named or module.endswith("preflight"), module
