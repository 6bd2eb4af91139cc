"""Two evaluations compared item by item, with numbers computed by hand."""

from __future__ import annotations

import json

import pytest

from atroposlib.cli import eval_diff
from atroposlib.cli.env_files import evaluate
from atroposlib.cli.eval_diff import (
    ItemResult,
    bootstrap_interval,
    comparison_lines,
    comparison_of,
)
from atroposlib.envs.runtime.evaluation import report_results
from atroposlib.errors import ConfigError


def items(**scores):
    return {
        name: ItemResult(i, values, [10 * (i + 1)] * len(values), ["stop"] * len(values))
        for i, (name, values) in enumerate(scores.items())
    }


A = items(x=[1.0, 0.0], y=[0.0, 0.0], z=[1.0, 1.0], failed=[])
B = items(z=[0.0, 0.0], y=[1.0, 1.0], x=[1.0, 0.0], failed=[1.0])


def test_means_are_paired_by_item():
    assert comparison_of(A, B, 1.0) == {
        "items": 3,
        "unscored": 1,
        "mean_a": 0.5,
        "mean_b": 0.5,
        "difference": 0.0,
        "low": -1.0,  # of z thrice with (1/3)^3 = 0.037
        "high": 1.0,
        "better": 1,
        "worse": 1,
        "only_a": [[2, "z"]],
        "only_b": [[1, "y"]],
        "length_a": 20.0,
        "length_b": 20.0,
        "finish_a": {"stop": 6},
        "finish_b": {"stop": 6},
    }


def test_the_interval_is_that_of_all_resamples_of_a_small_case():
    # Of {0, 1} the mean is 0, 1/2, 1 with probability 1/4, 1/2, 1/4; of {0, 0, 0, 1} it is
    # 0 with (3/4)^4 = 0.32, 3/4 or more with 4 (3/4) / 4^3 + 1 / 4^4 = 0.051, 1 with 0.004.
    assert bootstrap_interval([0.0, 1.0]) == (0.0, 1.0)
    assert bootstrap_interval([0.0, 0.0, 0.0, 1.0]) == (0.0, 0.75)
    assert bootstrap_interval([0.5] * 9) == (0.5, 0.5)
    assert bootstrap_interval([1.0]) == (None, None)


def test_the_interval_of_many_items_is_that_of_the_normal_law():
    low, high = bootstrap_interval([0.0, 1.0] * 200)  # standard error 0.5 / sqrt(400) = 0.025
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025), abs=0.003)


def test_long_lists_and_control_characters_are_cut_on_the_terminal():
    many = {f"item {i}\x1b[2J": ItemResult(i, [1.0], [1]) for i in range(25)}
    none = {name: ItemResult(one.index, [0.0], [1]) for name, one in many.items()}
    lines = comparison_lines({"metric": "exact", **comparison_of(many, none, 1.0)})
    assert "solved by A only: 25" in lines and "  and 5 more (--json has all)" in lines
    assert not any("\x1b" in line for line in lines)


@pytest.fixture
def folders(tmp_path):
    def write(name, *samples):
        common = {"task": "toy", "model_name": None, "start_time": None, "end_time": None}
        common |= {"generation_parameters": {}, "verbose": False}
        report_results(tmp_path / name, {}, samples=samples, **common)
        return str(tmp_path / name)

    return write


def answer(item, reward, text="4", **more):
    return {"id": item, "prompt": "2+2?", "completion": text, "reward": reward, **more}


def test_folders_of_evaluate_are_compared_by_the_command(folders, capsys):
    a = folders("a", answer("i", 0.0, exact=False), answer("j", 1.0, exact=True))
    b = folders("b", answer("j", 1.0, exact=True), answer("i", 1.0, "four", exact=True))
    assert evaluate(["diff", a, b]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("reward over 2 items: 0.5000 -> 1.0000, difference +0.5000, 95%")
    assert "characters of an answer: 1.0 -> 2.5" in shown and "B only: 1\n  0: i" in shown
    assert eval_diff.main([a, b, "--metric", "exact", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["difference"], found["low"], found["only_b"]) == (0.5, 0.0, [[0, "i"]])


def test_other_items_are_refused_unless_the_shared_ones_are_asked_for(folders, capsys):
    a = folders("a", answer("i", 0.0), answer("j", 1.0))
    b = folders("b", answer("j", 0.0), answer("k", 1.0), answer("l", 1.0))
    with pytest.raises(ConfigError, match="has 2, .* has 3, 1 are in both"):
        eval_diff.main([a, b])
    assert eval_diff.main([a, b, "--shared"]) == 0
    assert "over 1 items: 1.0000 -> 0.0000" in capsys.readouterr().out


def test_samples_without_texts_and_missing_ones(folders, tmp_path):
    with pytest.raises(ConfigError, match="no transcripts.jsonl"):
        eval_diff.read_items(tmp_path, "reward")
    a = folders("a", answer("i", 0.0))
    with pytest.raises(ConfigError, match="no sample has a number 'exakt'"):
        eval_diff.main([a, a, "--metric", "exakt"])
