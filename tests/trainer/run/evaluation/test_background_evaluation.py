"""Evaluations in the background that hang, in part or wholly, or are late: real programs."""

from __future__ import annotations

import pytest

from example_trainer.run.evaluation import EvaluationOutcome
from tests.trainer.run.evaluation.background import HANG, background_run
from tests.trainer.run.evaluation.test_evaluator import gone


@pytest.fixture
def run_with(config, policy, model_dir):
    return lambda **settings: background_run(config, policy, model_dir, **settings)


def test_a_hung_evaluation_ends_at_its_bound_and_is_no_number(run_with):
    with run_with(eval_command=HANG, eval_timeout_s=3.0) as run:
        run.step(1)
        run.step(2)
        run.wait_until((run.folder(2) / "begun").exists)
        run.step(3)  # training goes on
        progress = run.evaluator.progress()
        assert progress["evaluated_version"] == 2 and progress["evaluation_bound_s"] == 3.0
        run.wait_for_end()
        assert run.evaluator.progress() == {}
        assert run.publisher.fleet.held == {}
        assert run.step(5) == {"eval_failures": 1.0}
        (hung,) = run.reported
        assert hung.outcome is EvaluationOutcome.FAILED and hung.metrics() == {}
        assert hung.why == "not done after 3 s, without partial results"
        assert gone(int((run.folder(2) / "pid").read_text()))


# "slow" hangs: of its tasks only the others are measured.
SLOW = """
import asyncio
from atroposlib.envs import environment

@environment(["train"], eval_dataset=["a", "b", "hangs"], max_tokens=4)
async def slow(task, model):
    await model.chat("abc")
    if task == "hangs":
        await asyncio.sleep(600)
    return float(task == "a")

if __name__ == "__main__":
    slow.cli()
"""


def test_a_hung_task_leaves_the_partial_results_of_the_others(run_with, tmp_path, model_dir):
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    tokenizer = f"--env.tokenizer_name {model_dir}"
    settings = {"eval_command": None, "eval_environments": [f"{script} {tokenizer}"]}
    with run_with(**settings) as run:
        run.step(1)
        run.step(2)
        partial = run.folder(2) / "slow" / "partial" / "metrics.json"
        run.wait_until(lambda: partial.exists() and '"items": 2' in partial.read_text())
        assert run.evaluator._running is not None
        run.evaluator._running.stop("not done after 9 s")
        run.wait_for_end()
        run.step(3)
        (part,) = run.reported
        assert part.outcome is EvaluationOutcome.PARTIAL and part.parts[0].of_tasks == 3
        numbers = part.metrics()
        assert numbers["eval_partial/slow/reward"] == 0.5
        assert numbers["eval_partial/slow/items"] == 2.0
        assert not [name for name in numbers if name.startswith("eval/slow")]


def test_the_next_evaluation_replaces_one_that_is_late(run_with):
    with run_with(eval_command=HANG) as run:
        run.step(1)
        run.step(2)
        run.wait_until((run.folder(2) / "begun").exists)
        run.step(3)
        run.step(4)  # due: the late one is told to end
        run.wait_for_end()
        assert run.step(5) == {"eval_failures": 1.0}  # its server is free: the next begins
        assert run.reported[0].why.startswith("replaced: the evaluation of step 4 is due")
        run.wait_until((run.folder(5) / "begun").exists)
        assert list(run.publisher.fleet.held.values()) == [5]
