"""Runs below a root: which folders are runs, and what is read of them."""

from __future__ import annotations

import json

import pytest

from atroposlib.errors import ConfigError
from atroposlib.workbench.run_folders import MAX_DEPTH, RunFiles, find_runs, run_at, seconds_of
from tests.workbench.made_runs import SOURCE, make_run, step_line


def test_runs_are_found_at_any_depth_and_not_inside_of_each_other(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "sweep/lr1/seed0")
    make_run(tmp_path / "a/checkpoints/inner")
    make_run(tmp_path / ".hidden/b")
    (tmp_path / "notes").mkdir()
    (tmp_path / "data/queue.sqlite").parent.mkdir()
    (tmp_path / "data/queue.sqlite").touch()  # a data directory alone
    deep = tmp_path / "/".join("d" * (MAX_DEPTH + 2))[: 2 * MAX_DEPTH + 3]
    make_run(deep)
    assert [run.name for run in find_runs(tmp_path)] == ["a", "data", "sweep/lr1/seed0"]


def test_a_run_as_the_root_is_the_only_run(tmp_path):
    [run] = find_runs(make_run(tmp_path / "alone"))
    assert run.name == "alone" and len(run.key) == 12
    with pytest.raises(ConfigError, match="no folder"):
        find_runs(tmp_path / "absent")


def test_a_folder_without_a_run_is_refused_by_the_commands(tmp_path):
    with pytest.raises(ConfigError, match="no folder of a run"):
        run_at(str(tmp_path))
    assert run_at(str(make_run(tmp_path / "a"))).name == "a"


@pytest.mark.parametrize("name", ["metrics.jsonl", "launch/trainer.yaml", "heldout", "queue"])
def test_a_link_that_leads_out_of_the_root_is_not_followed(tmp_path, name):
    elsewhere = make_run(tmp_path / "elsewhere", heldout={"q": 1.0}, items={"q": [1.0]})
    run = make_run(tmp_path / "root/run", (), lr=5.0)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(elsewhere / name)
    (tmp_path / "root/linked").symlink_to(elsewhere)
    [only] = find_runs(tmp_path / "root")
    files = RunFiles(only)
    assert files.steps() == [] and files.heldout() is None and files.index() is None
    assert files.settings().values.get("trainer.lr", "5.0") == "5.0"


def test_steps_are_read_as_they_are_written_and_without_lists(tmp_path):
    run = make_run(tmp_path / "a", [0.0, 0.5])
    files = RunFiles(run_at(str(run)))
    assert [step["reward_mean"] for step in files.steps()] == [0.0, 0.5]
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write(step_line(3, 1.0, 100))
        metrics.write('{"run_id": "r", "resumed_from": 2}\n')
        metrics.write(step_line(3, 0.75, 100) + '{"step": 4, "torn')
    steps = files.steps()
    assert [step["reward_mean"] for step in steps] == [0.0, 0.5, 0.75]
    assert "keys" not in steps[0] and seconds_of(steps) == 6.0


def test_a_new_file_of_metrics_replaces_the_old_one(tmp_path):
    run = make_run(tmp_path / "a", [0.0, 0.5, 1.0])
    files = RunFiles(run_at(str(run)))
    assert len(files.steps()) == 3
    (run / "metrics.jsonl").rename(run / "old")
    (run / "metrics.jsonl").write_text(step_line(1, 0.25, 100))
    assert [step["reward_mean"] for step in files.steps()] == [0.25]


def test_the_code_of_environments_is_that_of_the_index(tmp_path):
    run = make_run(tmp_path / "a", items={"q": [1.0]})
    files = RunFiles(run_at(str(run)))
    assert files.sources() == {"e": SOURCE}
    assert RunFiles(run_at(str(make_run(tmp_path / "b")))).sources() == {}


def test_a_file_of_settings_that_cannot_be_read_is_told(tmp_path):
    run = make_run(tmp_path / "a")
    (run / "launch/trainer.yaml").write_text("[not: a mapping")
    settings = RunFiles(run_at(str(run))).settings()
    assert "trainer.yaml" in settings.problem and "environment-0.env.seed" in settings.values


def test_a_folder_that_was_moved_has_the_settings_of_the_original(tmp_path):
    run = make_run(tmp_path / "a")
    (run / "launch/wiring.yaml").write_text(json.dumps({"log_dir": str(run)}))
    before = RunFiles(run_at(str(run))).settings().values
    moved = run.rename(tmp_path / "b")
    assert RunFiles(run_at(str(moved))).settings().values == before
    assert before["trainer.model_name"] == "{run}/start"
