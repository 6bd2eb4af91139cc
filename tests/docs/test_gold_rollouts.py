"""Messages of docs/examples/gold_rollouts.py, for training on a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs/examples/gold_rollouts.py"


def test_gold_rollouts_are_lines_of_messages_and_each_environment_has_its_settings():
    words = ("2", "letters", "words=1", "backwards=0", "calculator", "stories=false")
    done = subprocess.run(
        (sys.executable, str(SCRIPT), *words), capture_output=True, text=True, check=True
    )
    rollouts = [json.loads(line)["messages"] for line in done.stdout.splitlines()]
    assert [len(messages) for messages in rollouts] == [2, 2, 4, 4]
    assert rollouts[0][0]["content"].startswith("How many times")
    assert rollouts[2][1]["content"].startswith("That is <calc>")
