"""Results by task, of held-out checks and of rollouts."""

from __future__ import annotations

import json

import pytest

from atroposlib.errors import ConfigError
from atroposlib.workbench.run_folders import RunFiles, run_at
from atroposlib.workbench.task_results import TaskResults, task_results, task_table
from tests.workbench.made_runs import make_run


@pytest.fixture
def files(tmp_path):
    def read(name, **facts):
        return RunFiles(run_at(str(make_run(tmp_path / name, **facts))))

    return read


def scores(results):
    return {name: item.scores for name, item in results.items.items()}


def test_held_out_checks_are_taken_where_all_runs_share_a_task(files):
    a = files("a", heldout={"x": 1.0, "y": 0.0}, items={"q": [1.0]})
    b = files("b", heldout={"y": 0.5, "z": 1.0}, items={"q": [0.0]})
    of_a, of_b = task_results([a, b])
    assert of_a.source == "held-out" and of_a.about == "held-out tasks at step 3"
    assert scores(of_a) == {"x": [1.0], "y": [0.0]}
    assert scores(of_b) == {"y": [0.5], "z": [1.0]}


def test_rollouts_are_taken_where_held_out_tasks_are_others_or_missing(files):
    a = files("a", heldout={"x": 1.0}, items={"q": [1.0, 0.0]})
    for b in (
        files("b", heldout={"y": 0.5}, items={"q": [0.5]}),
        files("c", items={"q": [0.5]}),
    ):
        of_a, of_b = task_results([a, b])
        assert (of_a.source, of_a.length_unit) == ("rollouts", "tokens")
        assert scores(of_a) == {"e/q": [1.0, 0.0]} and scores(of_b) == {"e/q": [0.5]}


def test_another_number_of_held_out_answers_is_compared_by_name(files, tmp_path):
    a = files("a", heldout={"x": 0.5})
    samples = tmp_path / "a/heldout/step-3/samples.jsonl"
    samples.write_text(json.dumps({"id": "x", "reward": 0.5, "exact": True}) + "\n")
    [of_a] = task_results([a], metric="exact")
    assert scores(of_a) == {"x": [1.0]}
    with pytest.raises(ConfigError, match="has a number 'speed'"):
        task_results([a], metric="speed")


def test_a_run_without_tasks_is_an_error_that_names_it(files):
    with pytest.raises(ConfigError, match="a has neither held-out checks nor an index"):
        task_results([files("a")])
    with pytest.raises(ConfigError, match="only held-out answers do"):
        task_results([files("b", items={"q": [1.0]})], metric="exact")


def test_steps_choose_rollouts_even_beside_held_out_checks(files):
    a = files("a", heldout={"x": 1.0}, items={"q": [1.0]})
    with pytest.raises(ConfigError, match="no rollout of a named task"):
        task_results([a], steps="1..2")  # the rollouts of this index have no step


def test_the_table_begins_with_tasks_of_all_runs_that_differ_most(files):
    a = files("a", heldout={"same": 1.0, "apart": 0.0, "alone": 0.5})
    b = files("b", heldout={"same": 1.0, "apart": 1.0})
    rows = task_table(task_results([a, b]))
    assert [(row["task"], row["means"]) for row in rows] == [
        ("apart", [0.0, 1.0]),
        ("same", [1.0, 1.0]),
        ("alone", [0.5, None]),
    ]
    assert task_table([TaskResults("held-out", "", {})]) == []
