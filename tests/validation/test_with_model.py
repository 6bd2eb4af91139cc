"""Checks with a model: the decisions, from samples of an evaluation."""

from __future__ import annotations

import pytest

from atroposlib.envs.function_env.rollouts import EvalSample, Result
from atroposlib.envs.rollout.pool import Outcome, RolloutStatus
from atroposlib.envs.runtime.evaluation import ROW
from atroposlib.errors import ConfigError
from atroposlib.validation.report import Verdict
from atroposlib.validation.with_model import rows_of, signal, tokens


def sample(task, score, length=10, ended="stop"):
    shown = {"finish_reason": ended, ROW: {"tokens": [1] * length}}
    return EvalSample({"id": task}, Result.SCORED, {"reward": score}, shown)


def test_groups_of_equal_scores_carry_no_signal():
    mixed = [sample("a", 0.0), sample("a", 1.0), sample("b", 0.0), sample("b", 0.0)]
    assert signal(mixed, 0.0, 1.0, 0.05).verdict is Verdict.PASS
    for score in (0.0, 1.0):
        found = signal([sample("a", score)] * 4, 0.0, 1.0, 0.05)
        assert found.verdict is Verdict.WARN and "0% of 1 groups" in found.text
    assert signal([], 0.0, 1.0, 0.05).verdict is Verdict.WARN


def test_long_rows_and_cut_replies_are_a_warning():
    assert tokens([sample("a", 1.0)], 20, 0.05).verdict is Verdict.PASS
    assert tokens([sample("a", 1.0, length=21)], 20, 0.05).verdict is Verdict.WARN
    assert tokens([sample("a", 1.0, ended="length")], 20, 0.05).verdict is Verdict.WARN


def test_rows_of_a_class_are_samples_of_its_items():
    group = {
        "tokens": [[1], [1, 2]],
        "scores": [0.0, 1.0],
        "finish_reasons": ["stop", "length"],
    }
    failed = Outcome(RolloutStatus.FAILED, error=ConfigError("no"))
    samples = rows_of([Outcome(RolloutStatus.SCORED, [group]), failed])
    assert signal(samples, 0.0, 1.0, 0.05).verdict is Verdict.PASS
    assert tokens(samples, 1, 0.05).verdict is Verdict.WARN
    with pytest.raises(ConfigError, match="no"):
        rows_of([failed])
