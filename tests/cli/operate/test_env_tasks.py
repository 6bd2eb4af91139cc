"""atropos env tasks: tasks by success over steps, pools over time, what was retired."""

from __future__ import annotations

import json

import pytest

from atroposlib.cli.operate.env_tasks import main, run_part_of, summaries, tasks_by_order
from atroposlib.envs.curriculum.history import FOLDER, HistoryLine
from atroposlib.errors import ConfigError

LINES = [
    HistoryLine(0, "a", 0.0, False, 10, 0, "too_hard"),
    HistoryLine(0, "b", 0.5, True, 10, 0, "useful"),
    HistoryLine(9, "a", 0.0, False, 10, 9, "too_hard"),
    HistoryLine(12, "b", 1.0, False, 10, 12, "too_easy"),
    HistoryLine(19, "c", None, False, 0, 19, "unseen"),
]


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "checkpoints" / FOLDER
    folder.mkdir(parents=True)
    text = "".join(json.dumps(vars(line)) + "\n" for line in LINES)
    (folder / "sums.jsonl").write_text(text)
    return tmp_path


def test_a_task_has_its_success_over_the_parts_of_the_run():
    [a, b, c] = summaries(LINES)
    assert (a.groups, a.useful, a.success, a.pool) == (2, 0, 0.0, "too_hard")
    assert (b.first_success, b.success, b.last_step) == (0.5, 1.0, 12)
    assert b.over_steps == [0.5, None, None, None, None, None, 1.0, None, None, None]
    assert (c.groups, c.failed, c.success) == (0, 1, None)
    assert run_part_of(19, 19) == 9 and run_part_of(0, 0) == 0


@pytest.mark.parametrize(
    ("order", "names"),
    [("hardest", "abc"), ("easiest", "bac"), ("newest", "cba"), ("useful", "bac")],
)
def test_tasks_are_ordered(order, names):
    assert "".join(task.task for task in tasks_by_order(summaries(LINES), order)) == names


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
