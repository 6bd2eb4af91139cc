"""scripts/timed.py: the line before a command, and the recorded times."""

from __future__ import annotations

import subprocess
import sys

RULE = "about 4 min on 2 cores"


def timed(root, store, *command):
    line = [sys.executable, "scripts/timed.py", str(store), "fast tests", RULE, *command]
    done = subprocess.run(line, cwd=root, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_the_default_estimate_is_shown_until_a_time_is_recorded(root, tmp_path):
    store = tmp_path / "times.json"
    assert timed(root, store) == (0, f"fast tests: {RULE}\n")
    assert not store.exists()
    assert timed(root, store, sys.executable, "-c", "") == (0, f"fast tests: {RULE}\n")
    status, line = timed(root, store)
    assert status == 0 and line.startswith("fast tests: ") and line.endswith(" s last time\n")


def test_a_command_that_fails_keeps_the_earlier_time_and_its_status(root, tmp_path):
    store = tmp_path / "times.json"
    store.write_text('{"fast tests": 202.4}')
    status, line = timed(root, store, sys.executable, "-c", "raise SystemExit(5)")
    assert (status, line) == (5, "fast tests: 3 min 22 s last time\n")
    assert store.read_text() == '{"fast tests": 202.4}'


def test_a_damaged_file_counts_as_missing(root, tmp_path):
    store = tmp_path / "times.json"
    store.write_text("no JSON")
    assert timed(root, store) == (0, f"fast tests: {RULE}\n")
