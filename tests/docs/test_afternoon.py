"""The afternoon of docs/examples: every command of it runs, with few steps and one seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs/examples/afternoon.py"


def test_every_command_of_the_afternoon_runs(tmp_path):
    words = [
        sys.executable,
        str(SCRIPT),
        str(tmp_path / "after"),
        "--steps",
        "2",
        "--seeds",
        "1",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "settings that differ: 1" in done.stdout and "best: (" in done.stdout
    assert done.stdout.count("\n--- ") + done.stdout.startswith("---") == 8
