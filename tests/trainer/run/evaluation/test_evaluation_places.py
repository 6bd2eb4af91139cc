"""Tests of evaluations in the background: real servers, real programs, publishes meanwhile."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from atroposlib.errors import CheckpointError, ConfigError
from example_trainer.distributed.ranks import Ranks
from example_trainer.run.background_evaluation import write_record
from example_trainer.run.evaluation import Evaluation, EvaluationOutcome, read_record
from example_trainer.run.evaluator import Evaluator
from tests.trainer.run.evaluation.background import ASK, background_run
from tests.trainer.run.evaluation.test_evaluator import gone
from tests.trainer.weights.support.fleets import distance, expected, state

ROOT = Path(__file__).parents[4]


@pytest.fixture
def run_with(config, policy, model_dir):
    return lambda **settings: background_run(config, policy, model_dir, **settings)


@pytest.mark.parametrize("where", ["held", "dir"])
def test_the_version_stays_until_the_evaluation_ends_while_the_fleet_goes_on(run_with, where):
    with run_with(eval_where=where) as run:
        assert run.step(1) == run.step(2) == {}
        out = run.folder(2)
        run.wait_until((out / "begun").exists)
        for version in (3, 4):
            run.publish(version)
        versions = [server.engine.weight_version for server in run.servers]
        assert versions == ([4, 2, 0] if where == "held" else [4, 4, 2])
        (out / "go").touch()
        run.wait_for_end()
        assert run.reported == []  # results come in the loop
        run.step(5)
        (done,) = run.reported
        assert (done.step, done.version, done.outcome) == (2, 2, EvaluationOutcome.DONE)
        numbers = done.metrics()
        assert (numbers["eval/first"], numbers["eval/last"]) == (2, 2)
        record = read_record(out / "evaluation.json")
        assert record is not None and record.is_logged and record.seconds > 0
        run.publish(6)
        assert [server.engine.weight_version for server in run.servers[:2]] == [6, 6]
        assert not list(run.cfg.published.glob("evaluation_*"))
        assert not run.publisher.fleet.held


def test_the_server_of_dir_has_the_exported_weights(run_with):
    with run_with(eval_where="dir", eval_at_start=True) as run:
        run.publish(0)
        run.evaluator.at_start(state(0), [])
        out = run.folder(0)
        run.wait_until((out / "begun").exists)
        assert distance(run.servers[2].logprobs(), expected(run.policy)) < 1e-4
        (out / "go").touch()
        run.evaluator.finish()
        assert [done.version for done in run.reported] == [0]


def test_a_server_whose_weights_change_meanwhile_makes_the_evaluation_fail(
    run_with, model_dir
):
    with run_with() as run:
        run.step(1)
        run.step(2)
        out = run.folder(2)
        run.wait_until((out / "begun").exists)
        run.servers[1].engine.update_weights(str(model_dir), 0)  # as a restart does
        (out / "go").touch()
        run.wait_for_end()
        run.step(3)
        assert (
            run.reported[0].outcome is EvaluationOutcome.FAILED
            and run.reported[0].metrics() == {}
        )
        assert "holds version '0' and not 2" in run.reported[0].why


def test_a_server_of_another_model_is_not_evaluated(run_with, monkeypatch):
    with run_with(eval_where="dir") as run:
        scores = run.servers[0].client.__class__.score
        monkeypatch.setattr(
            run.servers[0].client.__class__, "score", lambda *a: [p - 1 for p in scores(*a)]
        )
        run.step(1)
        run.step(2)
        run.wait_for_end()
        run.step(3)
        assert "disagree on the weights that it loaded" in run.reported[0].why


def test_a_server_that_is_gone_costs_the_evaluation_and_not_the_step(run_with, monkeypatch):
    with run_with(eval_where="dir", eval_url="http://127.0.0.1:9") as run:
        run.step(1)
        assert run.step(2) == {}
        run.wait_for_end()
        assert run.step(3) == {"eval_failures": 1.0}
        assert "no inference server at http://127.0.0.1:9" in run.reported[0].why


def test_an_export_that_fails_is_a_failed_evaluation(run_with, monkeypatch):
    def full(*_: object) -> None:
        raise CheckpointError("no space left")

    with run_with(eval_where="dir") as run:
        monkeypatch.setattr(run.evaluator._place, "export", full)
        run.step(1)
        run.step(2)
        run.wait_for_end()
        run.step(3)
        assert run.reported[0].why == "no space left"


def test_one_server_is_never_held_and_the_evaluation_is_put_off(run_with, caplog):
    with run_with() as run:
        run.step(1)
        run.publisher.fleet.absent[run.servers[1].url] = 0.0
        run.publisher.fleet.behind.add(run.servers[1].url)  # only the keeper takes it back
        run.step(2)
        assert not run.publisher.fleet.held and "put off" in caplog.text
        run.publisher.fleet.behind.clear()
        run.step(3)
        assert list(run.publisher.fleet.held.values()) == [3]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"eval_where": "held", "inference_urls": ["http://a:1"]},
            "inference_urls directory://",
        ),
        ({"eval_where": "dir", "eval_url": None}, "set eval_url"),
    ],
)
def test_a_place_without_its_servers_is_refused_at_the_start(run_with, settings, problem):
    with pytest.raises(ConfigError, match=problem), run_with(**settings):
        pass


def test_a_place_without_anything_to_evaluate_is_refused(config):
    with pytest.raises(ConfigError, match="has nothing to evaluate"):
        config(eval_where="dir")


# --- after a crash -------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from atroposlib.processes import Children
from example_trainer.model.model_dir import TrainerState
from example_trainer.run.evaluation import Evaluation
from example_trainer.run.evaluation_jobs import Job, run_jobs
from example_trainer.run.background_evaluation import write_record
out = Path(sys.argv[1])
write_record(Evaluation(2, 2, "held", ["http://a:1"]), out)
job = Job("", ("sh", "-c", 'echo $$ > "$1"/pid; sleep 600', "sh", str(out)), out)
def kill():
    if (out / "pid").exists() and (out / "pid").read_text().strip():
        os.kill(os.getpid(), signal.SIGKILL)
run_jobs([job], out, float("inf"), 600.0, kill)
"""


def test_programs_of_a_trainer_that_was_killed_end_and_its_evaluation_is_lost(config):
    cfg = config(eval_every_steps=2, eval_command=ASK)
    out = Path(cfg.save_path).resolve() / "eval" / "step_2"
    out.mkdir(parents=True)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(out)], cwd=ROOT, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert gone(int((out / "pid").read_text()))
    assert json.loads((out / "evaluation.json").read_text())["outcome"] == "running"


def test_a_trainer_that_starts_again_notes_what_became_of_earlier_evaluations(run_with):
    with run_with() as run:
        running = Evaluation(2, 2, "held", ["http://a:1"])
        write_record(running, run.folder(2))
        ended = replace(running, step=3).with_problem("gone", 1.0)
        write_record(ended, run.folder(3))  # not logged yet
        write_record(Evaluation(9, 9, "held", []), run.folder(9))  # of a step that is repeated
        run.evaluator.at_start(state(4), [])
        assert sorted((e.step, e.outcome) for e in run.reported) == [
            (2, EvaluationOutcome.LOST),
            (3, EvaluationOutcome.FAILED),
        ]
        assert run.evaluator.failures == 2 and not run.folder(9).exists()
        again = Evaluator(
            run.cfg, Ranks.single(), None, run.evaluator._place, run.reported.append
        )
        again.at_start(state(4), [])
        assert len(run.reported) == 2


def test_held_servers_of_a_trainer_that_was_killed_get_the_weights_of_its_next_life(run_with):
    with run_with() as run:
        run.step(1)
        run.publisher.fleet.hold(0.5, 1)
        run.publish(2)
        assert [server.engine.weight_version for server in run.servers[:2]] == [2, 1]
        with run_with() as _:
            run.publisher.fleet.held.clear()  # a new process holds none
            run.publish(2)
        assert [server.engine.weight_version for server in run.servers[:2]] == [2, 2]
