"""Folders of runs that no process serves: done, stopped, failed, and what is of an older start."""

from __future__ import annotations

import json

import pytest

from atroposlib import __version__
from atroposlib.errors import ConfigError
from atroposlib.processes import Interrupted, RunFailed
from atroposlib.run_status.ended import (
    NO_ENVIRONMENT,
    OUTCOME,
    ended_verdict,
    outcome_of,
    package_code,
    recorded_outcome,
)
from atroposlib.text.lines import LOG_STARTED


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "logs").mkdir()
    rows = [{"step": step, "reward_mean": 0.5} for step in (1, 2, 3, 4)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


def log(folder, *lines):
    (folder / "logs/trainer.log").write_text("".join(f"{line}\n" for line in lines))


def launch(folder, error=None, steps=4):
    with recorded_outcome(folder, steps, folder / "model", Interrupted):
        if error is not None:
            raise error


def test_a_finished_run_is_done_with_its_model_whatever_its_logs_say(folder):
    log(folder, "ConfigError: of an earlier start")
    launch(folder)
    verdict = ended_verdict(folder)
    assert (verdict.state, verdict.line) == ("done", "step 4 of 4")
    assert verdict.remedy == f"model {folder / 'model'}"
    assert not any("ConfigError" in text for text in verdict.findings[0].evidence)


def test_the_record_of_a_launch_names_the_code_that_ran(folder):
    launch(folder)
    outcome = outcome_of(folder)
    assert outcome is not None and outcome.code == package_code()
    assert outcome.code.startswith(f"{__version__} sha256:")


def test_a_stopped_run_names_its_step_and_that_it_goes_on(folder):
    with pytest.raises(Interrupted):
        launch(folder, Interrupted(2), steps=3000)
    verdict = ended_verdict(folder)
    assert (verdict.state, verdict.line) == ("stopped", "step 4 of 3000")
    assert "the same command goes on" in verdict.remedy


def test_a_run_that_lost_its_environments_names_its_step_the_reason_and_the_model(folder):
    with recorded_outcome(folder, 9, folder / "model", Interrupted) as reasons:
        reasons.append(NO_ENVIRONMENT)
    verdict = ended_verdict(folder)
    line = "step 4 of 9: every environment has ended"
    assert (verdict.state, verdict.line) == ("stopped", line)
    assert verdict.remedy.startswith(
        f"model {folder / 'model'}; with more data the same command"
    )


@pytest.mark.parametrize(
    "error", [RunFailed("trainer died (exit code 1)"), ConfigError("no x")]
)
def test_a_failed_run_names_its_error(folder, error):
    with pytest.raises(type(error)):
        launch(folder, error)
    verdict = ended_verdict(folder)
    assert verdict.state == "failed" and verdict.line == f"step 4 of 4: {error}"


def test_only_lines_after_the_last_start_are_errors_of_this_run(folder):
    log(folder, "ConfigError: loss 'mine' is unknown", f"{LOG_STARTED}now", "step 4")
    assert ended_verdict(folder).state == "stopped"
    log(folder, f"{LOG_STARTED}now", "CUDA error: out of memory")
    verdict = ended_verdict(folder)
    assert verdict.state == "failed" and "out of memory" in verdict.line


def test_a_launcher_that_was_killed_leaves_a_stopped_run(folder):
    (folder / "launch").mkdir()
    (folder / OUTCOME).write_text(json.dumps({"state": "running", "steps": 9}))
    assert ended_verdict(folder).line == "step 4 of 9"


def test_the_end_that_a_trainer_recorded_under_a_cluster_is_done(folder):
    (folder / "launch").mkdir()
    (folder / "launch/ended.json").write_text('{"step": 4}')
    assert ended_verdict(folder).state == "done"


def test_a_folder_without_steps_asks_whether_the_run_began(tmp_path):
    verdict = ended_verdict(tmp_path)
    assert (verdict.state, verdict.line) == ("stopped", "no step was trained: has it begun?")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": "odd"}', '{"unknown": 1}'])
def test_a_damaged_record_is_none(folder, text):
    (folder / "launch").mkdir()
    (folder / OUTCOME).write_text(text)
    assert outcome_of(folder) is None
