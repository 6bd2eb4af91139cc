"""Two runs compared: settings with places, code, figures where both have them, pairs of tasks."""

from __future__ import annotations

import pytest

from atroposlib.workbench.run_diff import diff_of_runs, source_texts
from atroposlib.workbench.run_folders import run_at
from tests.workbench.made_runs import make_run


def diff(a, b, **options):
    settled = {"metric": "reward", "solved": 1.0, "steps": None} | options
    return diff_of_runs(run_at(str(a)), run_at(str(b)), **settled)


def test_settings_that_differ_are_named_with_both_places(tmp_path):
    a = make_run(tmp_path / "a", lr=0.1)
    b = make_run(tmp_path / "b", lr=0.2)
    result = diff(a, b)
    assert result["settings"] == [
        {
            "name": "trainer.lr",
            "a": "0.1",
            "b": "0.2",
            "place_a": "launch/trainer.yaml:3",
            "place_b": "launch/trainer.yaml:3",
        }
    ]
    assert result["a"] == {
        "name": "a",
        "state": "done",
        "line": "step 3 of 3",
        "steps": 3,
        "tokens": 300,
        "seconds": 6.0,
    }


def test_figures_stand_at_equal_steps_and_at_equal_tokens(tmp_path):
    a = make_run(tmp_path / "a", [0.0, 0.5, 1.0], tokens=100)
    b = make_run(tmp_path / "b", [0.0, 0.2, 0.4, 0.6], tokens=50)
    [reward, *_] = diff(a, b)["figures"]
    assert reward["key"] == "reward_mean" and reward["last"] == [1.0, 0.6]
    assert reward["step"] == {"at": 3.0, "a": 1.0, "b": 0.4}
    assert reward["tokens"] == {"at": 200.0, "a": 0.5, "b": 0.6}


def test_code_is_the_same_differs_or_is_unknown(tmp_path):
    a = make_run(tmp_path / "a", items={"q": [1.0]})
    b = make_run(tmp_path / "b")
    (b / "launch/outcome.json").write_text('{"state": "done", "code": "1.1 sha256:b"}')
    assert [(part["name"], part["same"]) for part in diff(a, b)["code"]] == [
        ("atropos", False),
        ("e", None),
    ]
    assert [part["same"] for part in diff(a, a)["code"]] == [True, True]


@pytest.mark.parametrize(
    ("env_a", "env_b", "pairs"),
    [("e_0", "e_0", 1), ("e_0", "e_1", 1), ("e", "e_2", 1), ("e_0", "e_long_0", None)],
)
def test_an_environment_that_was_restarted_in_one_run_is_paired(tmp_path, env_a, env_b, pairs):
    a = make_run(tmp_path / "a", items={"q": [1.0]}, env=env_a)
    b = make_run(tmp_path / "b", items={"q": [0.0]}, env=env_b)
    result = diff(a, b)
    if pairs is None:
        assert (
            result["tasks"] is None
            and "no item has a score in both" in result["tasks_missing"]
        )
        return
    tasks = result["tasks"]
    assert (tasks["items"], tasks["unpaired_a"], tasks["unpaired_b"]) == (pairs, 0, 0)
    assert tasks["only_a"] == [[0, "e/q"]]
    assert [(part["name"], part["same"]) for part in result["code"]][1:] == [("e", True)]


def test_code_of_processes_that_differ_is_named_in_full():
    sources = {"e_0": {"digest": "x"}, "e_1": {"digest": "y"}, "f_0": {"digest": "z"}}
    assert source_texts(sources) == {"e": "x, y", "f": "z"}


def test_tasks_are_paired_with_the_tasks_that_only_one_solves(tmp_path):
    a = make_run(tmp_path / "a", heldout={"x": 1.0, "y": 0.0, "z": 0.0})
    b = make_run(tmp_path / "b", heldout={"x": 0.0, "y": 1.0, "w": 1.0})
    tasks = diff(a, b)["tasks"]
    assert (tasks["items"], tasks["unpaired_a"], tasks["unpaired_b"]) == (2, 1, 1)
    assert (tasks["difference"], tasks["low"], tasks["high"]) == (0.0, -1.0, 1.0)
    assert tasks["only_a"] == [[0, "x"]] and tasks["only_b"] == [[1, "y"]]


def test_runs_without_tasks_are_compared_all_the_same(tmp_path):
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "x/a")
    result = diff(a, b)
    assert result["tasks"] is None and "neither held-out" in result["tasks_missing"]
    assert [result[side]["name"] for side in ("a", "b")] == [str(a), str(b)]  # not twice "a"
