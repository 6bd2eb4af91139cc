"""atropos env tasks: tasks by success over steps, pools over time, what was retired."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import asdict

from atroposlib.cli.operate.env_tasks import main
from atroposlib.errors import ConfigError
from atroposlib.run_status.task_history import FOLDER
from tests.run_status.test_task_history import LINES


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "checkpoints" / FOLDER
    folder.mkdir(parents=True)
    text = "".join(json.dumps(asdict(line)) + "\n" for line in LINES)
    (folder / "sums.jsonl").write_text(text)
    return tmp_path


def test_the_command_prints_pools_and_retired_tasks(run, capsys):
    assert main([str(run)]) == 0
    text = capsys.readouterr().out
    assert "sums: 4 groups of 3 tasks, 25% useful, 40 tokens a useful group" in text
    assert "retired at the end, of 3 tasks: 1 too easy, 1 too hard" in text
    [line] = [line for line in text.splitlines() if line.startswith("b ")]
    assert line.split() == ["b", "2", "1", "1.00", "▅", "█", "too_easy"]


def test_all_tasks_are_exported(run, capsys):
    main([str(run), "--json"])
    tasks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(task["env"], task["task"]) for task in tasks] == [
        ("sums", name) for name in "abc"
    ]


def test_a_folder_without_a_history_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="settings have a curriculum"):
        main([str(tmp_path)])
