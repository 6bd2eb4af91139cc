"""Tests of the copy of an evaluation's results among the held-out checks of a run."""

from __future__ import annotations

import json

import pytest

from atroposlib.run_status.heldout import Heldout
from example_trainer.run.evaluation import Evaluation, EvaluationOutcome, Measured
from example_trainer.run.heldout_copy import copy_to_heldout

RUNNING = Evaluation(step=4, version=3, where="held", servers=[])


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "eval" / "sums"
    folder.mkdir(parents=True)
    document = {"config_general": {}, "results": {"all": {"exact": 0.5}}}
    (folder / "metrics.json").write_text(json.dumps(document))
    line = {"id": "a", "prompt": "1+1", "completion": "2", "reward": 1.0, "exact": 1.0}
    (folder / "samples.jsonl").write_text(json.dumps(line) + "\n")
    return folder.parent


def test_a_whole_evaluation_is_a_check_of_its_step_and_version(tmp_path, results):
    ended = RUNNING.with_results(
        [Measured("sums", EvaluationOutcome.DONE, {"exact": 0.5})], 1.0
    )
    for _ in range(2):  # repeated after a crash
        copy_to_heldout(ended, results, tmp_path / "run")
    (check,) = Heldout(tmp_path / "run" / "heldout").read()
    assert (check.step, check.version, check.exact) == (4, 3, 0.5)
    assert [sample.completion for (sample,) in Heldout(check.directory.parent).answers()] == [
        "2"
    ]


@pytest.mark.parametrize("outcome", [EvaluationOutcome.PARTIAL, EvaluationOutcome.FAILED])
def test_partial_and_failed_results_are_no_check(tmp_path, results, outcome):
    ended = RUNNING.with_results([Measured("sums", outcome, {"exact": 0.5}, of_tasks=9)], 1.0)
    copy_to_heldout(ended, results, tmp_path / "run")
    assert Heldout(tmp_path / "run" / "heldout").read() == []
