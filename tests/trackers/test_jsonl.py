from __future__ import annotations

import json

import pytest

from atroposlib.trackers.jsonl import Jsonl, json_number, last_run, read_steps


def test_records_are_appended_to_a_file_of_an_earlier_process(tmp_path):
    path = tmp_path / "deep" / "metrics.jsonl"
    for step in (1, 2):
        file = Jsonl(path)
        file.write({"step": step, "loss": float("nan")})
        assert len(path.read_text().splitlines()) == step  # flushed before it is closed
        file.close()
    assert read_steps(path) == [{"step": 1, "loss": None}, {"step": 2, "loss": None}]


def test_an_incomplete_last_line_is_removed_before_the_next_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    file = Jsonl(path)
    file.write({"step": 2})
    file.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1},
        {"step": 2},
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_without_a_json_form_become_null(value):
    assert json_number(value) is None
    assert (json_number(0.5), json_number("x")) == (0.5, "x")


def test_lines_that_are_no_objects_are_skipped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n[2]\nnot json\n{"step": 3}\n')
    assert [line["step"] for line in read_steps(path)] == [1, 3]


def test_a_resumed_run_replaces_the_steps_after_its_checkpoint():
    head = {"run_id": "a"}
    lines = [{**head, "step": step, "loss": 0.5} for step in (1, 2, 3)]
    lines += [{**head, "resumed_from": 1}]
    lines += [{**head, "step": step, "loss": 0.25} for step in (2, 3, 4)]
    read = last_run(lines)
    assert [(line["step"], line["loss"]) for line in read] == [
        (1, 0.5),
        (2, 0.25),
        (3, 0.25),
        (4, 0.25),
    ]
    assert last_run([*lines, {"run_id": "b", "step": 1}]) == [{"run_id": "b", "step": 1}]


def test_a_rewound_run_has_one_line_per_step_and_other_runs_keep_theirs(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [{"run_id": "old", "step": 9}, *({"run_id": "a", "step": n} for n in (1, 2, 3))]
    lines[2:2] = [{"run_id": "a", "resumed_from": 0}, {"run_id": "a", "resumed_from": 2}]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"note": 1}]))
    file = Jsonl(path)
    assert file.rewind("a", 1) == 3
    file.write({"run_id": "a", "step": 2})
    assert file.rewind("a", 2) == 0
    file.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"run_id": "old", "step": 9},
        {"run_id": "a", "step": 1},
        {"run_id": "a", "resumed_from": 0},
        {"note": 1},
        {"run_id": "a", "step": 2},
    ]


def test_an_evaluation_that_came_later_belongs_to_its_step(tmp_path):
    late = {"run_id": "a", "evaluated_step": 1, "evaluated_version": 1, "eval/exact": 0.5}
    lines = [{"run_id": "a", "step": n, "loss": n} for n in (1, 2)]
    assert last_run([*lines, late, {**late, "evaluated_step": 7}]) == [
        {"run_id": "a", "step": 1, "loss": 1, "evaluated_version": 1, "eval/exact": 0.5},
        {"run_id": "a", "step": 2, "loss": 2},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, late]))
    file = Jsonl(path)
    assert file.rewind("a", 1) == 1  # step 2; the evaluation of step 1 stays
    assert file.rewind("a", 0) == 2
    file.close()


def test_an_evaluation_before_the_first_step_is_step_0_where_it_is_asked_for():
    lines = [
        {"run_id": "a", "evaluated_step": 0, "evaluated_version": 0, "eval/exact": 0.1},
        {"run_id": "a", "step": 1, "reward": 0.5},
        {"run_id": "a", "evaluated_step": 1, "eval/exact": 0.2},
    ]
    first = {"run_id": "a", "step": 1, "reward": 0.5, "eval/exact": 0.2}
    assert last_run(lines) == [first]
    start = {"step": 0, "evaluated_version": 0, "eval/exact": 0.1}
    assert last_run(lines, with_start=True) == [start, first]
