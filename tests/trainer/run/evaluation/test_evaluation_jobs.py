"""Tests of the programs of an evaluation: their words, and real processes that end in every way."""

from __future__ import annotations

import json
import sys
import time

import pytest

from atroposlib.errors import ConfigError
from example_trainer.model.model_dir import TrainerState
from example_trainer.run.evaluation import EvaluationOutcome
from example_trainer.run.evaluation_jobs import (
    Job,
    environments_of,
    jobs_of,
    run_jobs,
    with_servers,
    without_config,
)

STATE = TrainerState("run", step=7, version=6, batch_no=7)
WRITES = """
import json, pathlib, sys
pathlib.Path(sys.argv[1], "metrics.json").write_text(json.dumps({"results": {"all": {"exact": 1}}}))
"""
PARTIAL = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1], "partial")
folder.mkdir()
results = {"config_general": {"partial_of": 9}, "results": {"all": {"exact": 1, "items": 3}}}
draft = folder / "draft"
draft.write_text(json.dumps(results))
draft.rename(folder / "metrics.json")
time.sleep(600)
"""


def job(folder, program, name="sums"):
    out = folder / name
    out.mkdir(parents=True, exist_ok=True)
    return Job(name, (sys.executable, "-c", program, str(out)), out)


def run(jobs, folder, interrupted=lambda: None, bound_s=600.0):
    return run_jobs(jobs, folder, time.monotonic() + bound_s, bound_s, interrupted)


def test_environments_run_with_their_settings_on_the_servers_of_the_evaluation(
    config, tmp_path
):
    own = tmp_path / "own.yaml"
    own.write_text("env: {seed: 3}\nopenai: {base_url: 'directory://', api_key: k}\n")
    cfg = config(eval_environments=[f"sums.py --config {own} --env.eval_items 5"])
    (found,) = jobs_of(cfg, STATE, 6, ["http://a:1", "http://b:1"], tmp_path / "out")
    settings = tmp_path / "out" / "sums" / "settings.yaml"
    assert found.argv[1:] == (
        *("-m", "atroposlib.cli.atropos", "eval", "sums.py", "--config", str(settings)),
        *("--env.eval_items", "5"),
        *("--env.data_dir_to_save_evals", str(tmp_path / "out" / "sums")),
    )
    server = {"model_name": cfg.model_name, "server_type": "vllm", "api_key": "k"}
    assert json.loads(settings.read_text()) == {
        "env": {"seed": 3},
        "openai": [{**server, "base_url": f"http://{url}:1/v1"} for url in "ab"],
    }


def test_a_single_server_is_a_mapping_so_that_flags_may_change_it():
    settings = with_servers({"openai": [{"timeout": 5}]}, {"api_key": "none"}, ["http://a:1"])
    assert settings == {
        "openai": {"api_key": "none", "timeout": 5, "base_url": "http://a:1/v1"}
    }


def test_names_are_those_of_files_unless_the_entry_names_one():
    assert environments_of(
        ["dir/sums.py", "name=b sums.py --env.x 'a b'", "gymnasium:Taxi"]
    ) == {
        "sums": ["dir/sums.py"],
        "b": ["sums.py", "--env.x", "a b"],
        "gymnasium": ["gymnasium:Taxi"],
    }


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (["a.py", "b/a.py"], "two are named a; begin one with name=ANOTHER"),
        (["'a"], "No closing quotation"),
        (["name=a"], "names no environment"),
        (["name=../a b.py"], "is no name of a folder"),
    ],
)
def test_entries_that_cannot_be_used_are_refused(entries, problem):
    with pytest.raises(ConfigError, match=problem):
        environments_of(entries)


def test_the_config_flag_is_found_in_both_forms():
    assert without_config(["--a", "1", "--config", "f", "b"]) == ("f", ["--a", "1", "b"])
    assert without_config(["--config=f"]) == ("f", [])
    assert without_config(["--a"]) == (None, ["--a"])


def test_programs_run_at_once_and_each_has_its_result(tmp_path):
    both = [job(tmp_path, WRITES, "a"), job(tmp_path, "raise SystemExit(3)", "b")]
    first, second = run(both, tmp_path)
    assert (first.outcome, first.numbers) == (EvaluationOutcome.DONE, {"exact": 1.0})
    assert second.outcome is EvaluationOutcome.FAILED and "exit code 3" in str(second.problem)


def test_results_of_an_earlier_evaluation_are_not_read_again(tmp_path):
    kept = job(tmp_path, WRITES)
    run([kept], tmp_path)
    (again,) = run([job(tmp_path, "pass")], tmp_path)
    assert again.outcome is EvaluationOutcome.FAILED


def test_a_program_that_is_ended_leaves_what_it_had_measured(tmp_path):
    hung = job(tmp_path, PARTIAL)
    seen = hung.out / "partial" / "metrics.json"
    (part,) = run([hung], tmp_path, lambda: "not done after 2 s" if seen.exists() else None)
    assert (part.outcome, part.numbers["items"], part.of_tasks) == (
        EvaluationOutcome.PARTIAL,
        3.0,
        9,
    )
    assert part.problem == "not done after 2 s"


def test_numbers_of_a_program_that_failed_are_no_result(tmp_path):
    program = f"{WRITES}\nsys.exit(1)"
    (failed,) = run([job(tmp_path, program)], tmp_path)
    assert failed.outcome is EvaluationOutcome.FAILED and failed.metrics() == {}


def test_a_program_that_cannot_start_fails_alone(tmp_path):
    missing = Job("gone", ("/no/such/program",), tmp_path / "gone")
    first, second = run([missing, job(tmp_path, WRITES)], tmp_path)
    assert (
        "/no/such/program" in str(first.problem) and second.outcome is EvaluationOutcome.DONE
    )
