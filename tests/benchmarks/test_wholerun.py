"""Whole runs: command lines of their processes, without running anything."""

from __future__ import annotations

from pathlib import Path

from wholerun import Setup, changed_settings, with_flags

from atroposlib.processes import ProcessSpec
from atroposlib.quickstart.recipes import COPY


def test_flags_replace_existing_flags_or_are_appended():
    command = ("python", "--lr", "0.1", "--steps", "3")
    flags = {"--lr": 0.2, "--loss": "grpo", "--no-prefetch": None}
    assert with_flags(command, flags) == (
        *("python", "--lr", "0.2", "--steps", "3", "--loss", "grpo", "--no-prefetch"),
    )


def test_flags_of_a_setup_reach_the_trainer_only():
    setup = Setup(Path("."), COPY, "tiny", 0, trainer={"--loss": "ppo"})
    for name, flags in (("trainer", ("--loss", "ppo")), ("environment", ())):
        spec = ProcessSpec(name, ("py", "-m", "module"), {}, Path("."))
        assert changed_settings(spec, setup).argv == ("py", "-m", "module", *flags)
