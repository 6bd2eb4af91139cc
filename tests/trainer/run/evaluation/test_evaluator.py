"""Tests of evaluation with real programs; each program ends with its test."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from example_trainer.distributed.ranks import Ranks
from example_trainer.model.model_dir import TrainerState
from example_trainer.run.connect import HeartbeatThread, WaitReporter
from example_trainer.run.evaluation import Evaluation
from example_trainer.run.evaluator import Evaluator
from example_trainer.state import Stopped, StopSignal

STATE = TrainerState("run", step=7, version=6, batch_no=7)
WRITES = """
import json, pathlib, sys
version, step, url, out, extra = sys.argv[1:]
metrics = {"version": int(version), "step": int(step), "url": url, "extra": json.loads(extra)}
pathlib.Path(out, "metrics.json").write_text(json.dumps(metrics))
"""


@pytest.fixture
def evaluate(config):
    """Run a Python program as the evaluation."""

    def run(program: str, *arguments: str, **settings: Any) -> dict[str, float]:
        command = [sys.executable, "-c", program, *arguments]
        defaults: dict[str, Any] = {"eval_every_steps": 1, "eval_command": command}
        evaluator = Evaluator(config(**{**defaults, **settings}), Ranks.single())
        return evaluator.maybe(STATE, False, ["http://one", "http://two"])

    return run


def test_command_gets_version_and_url_and_its_metrics_are_read(evaluate):
    arguments = ("{version}", "{step}", "{url}", "{out}", '{"share": 0.5, "flag": true}')
    assert evaluate(WRITES, *arguments) == {
        "eval/version": 6.0,
        "eval/step": 7.0,
        "eval/extra/share": 0.5,
        "eval_failures": 0.0,
    }


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; print('no data'); sys.exit(3)", "exit code 3\nno data"),
        ("pass", "metrics.json"),
        (
            "import sys; open(sys.argv[1] + '/metrics.json', 'w').write('[1]')",
            "no JSON object",
        ),
        (
            "import sys; open(sys.argv[1] + '/metrics.json', 'w').write('{')",
            "EVALUATION FAILED",
        ),
        (
            "import sys; open(sys.argv[1] + '/metrics.json', 'w').write('{}')",
            "holds no number",
        ),
    ],
)
def test_failed_evaluation_is_counted_and_printed_without_a_metric(
    evaluate, caplog, program, said
):
    caplog.set_level("INFO")
    assert evaluate(program, "{out}") == {"eval_failures": 1.0}
    output = caplog.text
    assert "EVALUATION FAILED at step 7" in output and said in output


def test_missing_program_is_a_failed_evaluation(config, caplog):
    caplog.set_level("INFO")
    cfg = config(eval_every_steps=1, eval_command=["/no/such/program"])
    evaluator = Evaluator(cfg, Ranks.single())
    for failures in (1.0, 2.0):
        assert evaluator.maybe(STATE, False, []) == {"eval_failures": failures}
    assert "/no/such/program" in caplog.text


def test_failed_evaluation_does_not_return_earlier_metrics(evaluate, config):
    out = Path(config().save_path) / "eval" / "step_7"
    out.mkdir(parents=True)
    (out / "metrics.json").write_text('{"accuracy": 1.0}')
    assert evaluate("pass") == {"eval_failures": 1.0}


# Of a shell, which has started long before the bound; Python may need more than a second.
HANGS = 'sleep 600 & echo $$ $! > "$1"/pids; wait'


def test_an_evaluation_that_takes_too_long_ends_with_all_its_processes(
    evaluate, config, caplog
):
    caplog.set_level("INFO")
    command = ["sh", "-c", HANGS, "sh", "{out}"]
    assert evaluate("", eval_command=command, eval_timeout_s=2.0) == {"eval_failures": 1.0}
    assert "not done after 2 s" in caplog.text
    pids = (Path(config().save_path) / "eval" / "step_7" / "pids").read_text().split()
    assert len(pids) == 2 and all(map(gone, map(int, pids)))


def gone(pid: int) -> bool:
    """Whether a process has ended, or ends within the time init takes to reap it."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        state = Path(f"/proc/{pid}/stat")
        if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
    return False


def test_a_signal_ends_the_evaluation_and_the_trainer(config):
    stop = StopSignal()
    cfg = config(
        eval_every_steps=1, eval_command=[sys.executable, "-c", "import time; time.sleep(600)"]
    )
    stop.request(15)
    evaluator = Evaluator(
        cfg, Ranks.single(), WaitReporter(stop, HeartbeatThread(lambda beat: None, "test"))
    )
    with pytest.raises(Stopped, match="SIGTERM"):
        evaluator.maybe(STATE, False, [])


def test_progress_names_the_evaluation_that_the_trainer_waits_for(config, tmp_path):
    seen_once = tmp_path / "seen"
    os.mkfifo(seen_once)
    until_seen = [sys.executable, "-c", "import sys; open(sys.argv[1]).read()", str(seen_once)]
    cfg = config(eval_every_steps=1, eval_command=until_seen, eval_timeout_s=60.0)
    waits = WaitReporter(StopSignal(), HeartbeatThread(lambda beat: None, "test"))
    evaluator, seen = Evaluator(cfg, Ranks.single(), waits), []

    def see() -> None:
        seen.append(evaluator.progress())
        if len(seen) == 1:
            seen_once.write_text("")  # returns when the command reads

    waits.checks.append(see)
    assert evaluator.progress() == {}
    evaluator.maybe(STATE, False, [])
    spent_s = seen[0].pop("evaluation_s")
    assert 0 <= spent_s < 60
    assert seen[0] == {
        "evaluated_step": 7,
        "evaluated_version": 6,
        "evaluation_where": "shared",
        "evaluation_bound_s": 60.0,
    }
    assert evaluator.progress() == {}


def test_evaluations_follow_their_frequency_and_optionally_run_at_the_start(config):
    calls = [sys.executable, "-c", WRITES, "{version}", "{step}", "", "{out}", "{}"]
    cfg = config(eval_every_steps=2, eval_at_start=True, eval_command=calls)
    reported: list[Evaluation] = []
    evaluator = Evaluator(cfg, Ranks.single(), report=reported.append)
    evaluator.at_start(TrainerState("run", 0, 0, None), [])
    evaluator.at_start(STATE, [])  # a restarted trainer has begun long ago
    [start] = reported  # of step 0, so that the evaluation of step 1 does not replace it
    assert (start.step, start.version, start.metrics()["eval/step"]) == (0, 0, 0.0)
    assert [bool(evaluator.maybe(STATE, False, [])) for _ in range(4)] == [
        *(False, True, False, True)
    ]
    assert Evaluator(config(), Ranks.single()).maybe(STATE, True, []) == {}
