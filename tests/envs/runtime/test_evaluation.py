"""Files of evaluation results."""

from __future__ import annotations

import json

import numpy as np

from atroposlib.envs.runtime.evaluation import write_results


def test_results_survive_values_that_are_no_numbers(tmp_path):
    write_results(
        tmp_path,
        {"exact": np.float32(0.5), "none": None, "word": "x", "nan": float("nan")},
        task="toy_eval",
        model_name="m",
        seconds=1.5,
        generation_parameters={"temperature": 0.6},
        samples=[{"a": np.arange(2)}],
        measured_at={"eval_step": 3},
    )
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
