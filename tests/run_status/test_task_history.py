"""Tasks of a run from the files of its environments: success over steps, pools, retired tasks."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import asdict

from atroposlib.run_status.task_history import (
    FOLDER,
    OLDER,
    HistoryLine,
    RunPart,
    env_tasks,
    history_files,
    history_lines,
    run_part_of,
    task_page,
)

LINES = [
    HistoryLine(0, "a", 0.0, False, 10, 0, "too_hard"),
    HistoryLine(0, "b", 0.5, True, 10, 0, "useful"),
    HistoryLine(9, "a", 0.0, False, 10, 9, "too_hard"),
    HistoryLine(12, "b", 1.0, False, 10, 12, "too_easy"),
    HistoryLine(19, "c", None, False, 0, 19, "unseen"),
]


def test_a_task_has_its_success_over_the_parts_of_the_run():
    [a, b, c] = env_tasks("sums", LINES, "hardest").tasks
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
    tasks = env_tasks("sums", LINES, order).tasks
    assert "".join(task.task for task in tasks) == names
    assert env_tasks("sums", LINES, order, most=1).tasks == tasks[:1]


def test_parts_have_the_pools_of_their_groups_and_retired_tasks_are_counted():
    own = env_tasks("sums", LINES)
    assert (own.groups, own.useful, own.tokens, own.n_tasks) == (4, 1, 40, 3)
    assert own.retired == {"too_easy": 1, "too_hard": 1}
    assert own.parts == [
        RunPart(0, 2, 1, 0.25, {"too_hard": 1, "useful": 1}),
        RunPart(9, 1, 0, 0.0, {"too_hard": 1}),
        RunPart(12, 1, 0, 1.0, {"too_easy": 1}),
    ]
    assert env_tasks("empty", []).parts == [] and env_tasks("empty", []).retired == {}


def test_a_file_is_read_with_the_file_before_it_and_without_what_is_no_line(tmp_path):
    path = tmp_path / FOLDER / "sums.jsonl"
    path.parent.mkdir()
    entry = asdict(LINES[1]) | {"new": 1}  # of a later version of the environment
    path.with_name(f"sums.jsonl{OLDER}").write_text(json.dumps(asdict(LINES[0])) + "\n")
    path.write_text(
        json.dumps(entry) + '\n\n[1]\n{"step": "x"}\n{"task": "\udcff"}\n{"step": 5',
        errors="surrogateescape",
    )
    assert list(history_lines(path)) == LINES[:2]
    assert history_files([tmp_path / "none", tmp_path]) == [path]
    assert history_files([tmp_path / "none"]) == []


VALUES = st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.just(10**400)
FIELDS = ("step", "task", "success", "useful", "tokens", "version", "pool")


@given(
    st.lists(st.fixed_dictionaries(dict.fromkeys(FIELDS, VALUES)) | st.just(asdict(LINES[1])))
)
def test_any_line_is_counted_or_left_out_and_the_page_is_json(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("any", numbered=True)
    (folder / FOLDER).mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / FOLDER / "a%2Fb.jsonl").write_text(text)
    [own] = task_page([folder], "a/b", "hardest", 2).envs
    assert own.env == "a/b" and len(own.tasks) <= 2
    assert own.groups >= sum(line == asdict(LINES[1]) for line in lines)
    assert msgspec.json.encode(own)


@pytest.mark.parametrize(
    "change",
    [
        {"step": -1},
        {"step": 2**70},
        {"success": -5.0},
        {"success": 1000.0},
        {"tokens": -1},
        {"task": "x" * 1000},
    ],
)
def test_a_line_that_no_environment_writes_is_left_out(tmp_path, change):
    path = tmp_path / "sums.jsonl"
    path.write_text(json.dumps(asdict(LINES[1]) | change) + "\n")
    assert list(history_lines(path)) == []
