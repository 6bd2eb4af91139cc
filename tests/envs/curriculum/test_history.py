"""The history of observed groups."""

from __future__ import annotations

from atroposlib.envs.curriculum import history
from atroposlib.envs.curriculum.history import TaskHistory
from atroposlib.run_status.task_history import FOLDER, history_lines
from tests.envs.curriculum.conftest import group, rows


def test_each_group_is_a_line_and_a_torn_line_is_left_out(tmp_path):
    [task] = rows(1)
    written = TaskHistory()
    written.open(str(tmp_path), "my env")
    written.write(group(task, 1.0, 0.0), {"id": "a"}, 3, "useful")
    written.write(group(task), {"id": "b\ud800"}, 4, None)
    written.close()
    path = tmp_path / FOLDER / "my%20env.jsonl"
    with path.open("a") as file:
        file.write('{"step": 5')
    lines = list(history_lines(path))
    assert [
        (line.step, line.task, line.success, line.useful, line.pool) for line in lines
    ] == [
        (3, "a", 0.5, True, "useful"),
        (4, "b\ufffd", None, False, None),
    ]


def test_the_file_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "MAX_BYTES", 1000)
    [task] = rows(1)
    written = TaskHistory()
    written.open(str(tmp_path), "env")
    for step in range(50):
        written.write(group(task, 1.0), {"id": "a"}, step, None)
    written.close()
    files = list((tmp_path / FOLDER).iterdir())
    assert len(files) == 2 and all(file.stat().st_size < 1200 for file in files)
    steps = [line.step for line in history_lines(tmp_path / FOLDER / "env.jsonl")]
    assert steps == list(range(steps[0], 50))


def test_without_a_folder_nothing_is_written(tmp_path):
    [task] = rows(1)
    written = TaskHistory()
    written.write(group(task, 1.0), {"id": "a"}, 0, None)
    written.open("", "env")
    written.write(group(task, 1.0), {"id": "a"}, 0, None)
    assert list(tmp_path.iterdir()) == []
