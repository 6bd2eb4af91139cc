"""Two evaluations compared item by item, with numbers computed by hand."""

from __future__ import annotations

import json

import pytest

from atroposlib.cli import eval_diff
from atroposlib.cli.env_files import evaluate
from atroposlib.envs.runtime.evaluation import report_results
from atroposlib.errors import ConfigError


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
