"""Files of evaluation results."""

from __future__ import annotations

import json

import numpy as np

from atroposlib.envs.runtime.evaluation import (
    append_samples,
    eval_metrics,
    report_results,
)


def test_results_survive_values_that_are_no_numbers(tmp_path, capsys):
    report_results(
        tmp_path,
        {"exact": np.float32(0.5), "none": None, "word": "x", "nan": float("nan")},
        task="toy_eval",
        model_name="m",
        start_time=1.0,
        end_time=2.5,
        generation_parameters={"temperature": 0.6},
        samples=[{"a": np.arange(2)}],
        measured_at={"eval_step": 3},
        verbose=False,
    )
    assert capsys.readouterr().out == ""
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["config_general"] == {
        "model_name": "m",
        "total_evaluation_time_seconds": "1.5",
        "generation_parameters": {"temperature": 0.6},
        "eval_step": 3,
    }
    expected = {"exact": 0.5, "none": None, "word": "x", "nan": None}
    assert written["results"] == {"atropos|toy_eval|0": expected, "all": expected}
    assert json.loads((tmp_path / "samples.jsonl").read_text()) == {"a": [0, 1]}
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.json", "samples.jsonl"}


def test_samples_of_several_evaluations_are_appended_with_their_step(tmp_path):
    path = tmp_path / "deep" / "samples.jsonl"
    append_samples(path, [{"reward": 1.0}], step=3)
    append_samples(path, [{"reward": np.float32(0.5)}], step=6)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"step": 3, "reward": 1.0}, {"step": 6, "reward": 0.5}]


def test_names_of_metrics_begin_with_eval_once():
    assert eval_metrics({"exact": 1, "eval/f1": 2}) == {"eval/exact": 1, "eval/f1": 2}


def test_the_table_has_the_numbers_only(capsys):
    report_results(
        None,
        {"exact": 0.25, "word": "x", "flag": True},
        task="toy",
        model_name=None,
        start_time=1.0,
        end_time=2.0,
        generation_parameters={},
        samples=None,
    )
    shown = capsys.readouterr().out
    assert "exact" in shown and "word" not in shown and "flag" not in shown
