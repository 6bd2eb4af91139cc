from __future__ import annotations

import subprocess
from pathlib import Path

from atroposlib.quickstart.__main__ import parse_args
from atroposlib.quickstart.provenance import commit, provenance, repeat_command


def test_the_command_starts_the_same_run_again(tmp_path):
    given = ["--model", "tiny", "--seed", "7", "--steps", "3", "--environment", "my sums.py"]
    words = repeat_command(parse_args(given))
    assert words.startswith("python -m atroposlib.quickstart --model tiny --engine local")
    assert "--seed 7 --steps 3 --environment" in words
    assert words.endswith("my sums.py'")


def test_the_commit_is_that_of_the_checkout(tmp_path):
    assert commit(tmp_path) == "none: not a checkout"
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(tmp_path)]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    assert len(commit(tmp_path)) == 12


def test_the_versions_and_the_machine_are_named():
    found = provenance(Path("/"))
    assert found["packages"].startswith("atroposlib ")
    assert all(found.values())
