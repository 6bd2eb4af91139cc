"""Files of evaluation results."""

from __future__ import annotations

import json

import numpy as np
import pytest

from atroposlib.cli import eval_diff
from atroposlib.envs.runtime.evaluation import (
    append_samples,
    default_errors,
    eval_metrics,
    report_results,
    transcripts,
)
from atroposlib.text.lines import json_lines


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


def test_samples_and_metrics_of_any_form_of_json_are_written(tmp_path):
    samples = ["a text", ["q", 1], {"prompt": "p", "reward": 1.0}, 3, None]
    metrics = {"exact": 0.5, "by_subject": {"algebra": np.float32(0.25)}, "runs": [0.5, 1.0]}
    report_results(
        tmp_path,
        metrics,
        task="t",
        model_name="m",
        start_time=None,
        end_time=None,
        generation_parameters={},
        samples=samples,
    )
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["results"]["all"] == metrics
    lines = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == samples
    append_samples(tmp_path / "all.jsonl", ["a text"], step=3)
    assert json.loads((tmp_path / "all.jsonl").read_text()) == {"step": 3, "sample": "a text"}


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


def test_standard_errors_are_clustered_by_item():
    samples = [{"id": n // 2, "exact": n < 4, "n": n} for n in range(6)]
    # Means of the items: 1, 1, 0. Their standard deviation is sqrt(1/3), so over three items:
    errors = default_errors(samples, {"exact": 4 / 6, "n": 99.0, "other": 1.0})
    assert errors == {"exact": pytest.approx(1 / 3)}  # six independent samples: 0.21
    assert default_errors(samples[:2], {"exact": 1.0}) == {}


def test_transcripts_are_groups_by_item_in_the_form_of_process():
    calls = [{"function": {"name": "add", "arguments": "{}"}}]
    said = [{"role": "user", "content": "hi"}]
    row = {"tokens": [1, 2], "masks": [-100, 2], "versions": None}
    samples = [
        {
            "id": "a",
            "prompt": "2+2?",
            "completion": "4",
            "reward": 1,
            "exact": True,
            "row": row,
        },
        {"id": "b", "messages": said, "score": 0.5},
        {"id": "a", "prompt": said, "completion": "", "tool_calls": calls, "reward": 0.0},
        {"id": "b", "task": {}, "result": "failed", "error": "away"},
    ]
    first, second = transcripts(samples, "toy")
    assert first["messages"][0] == [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
    ]
    assert first["messages"][1][-1]["tool_calls"] == calls
    assert (first["scores"], second["scores"]) == ([1.0, 0.0], [0.5, None])
    assert first["metadata"] == {
        "item": "a",
        "env": "toy",
        "named_rewards": [{"exact": 1.0}, {}],
    }
    assert (first["tokens"], first["masks"]) == ([[1, 2], None], [[-100, 2], None])
    assert "versions" not in first
    assert (second["messages"], second["metadata"]["errors"]) == ([said, []], [None, "away"])


def test_tokens_of_samples_stand_in_the_transcripts_only(tmp_path, capsys):
    sample = {"id": 1, "prompt": "p", "reward": 1.0, "row": {"tokens": [1], "masks": [1]}}
    report_results(
        tmp_path,
        {"reward": 1.0},
        task="toy",
        model_name=None,
        start_time=1.0,
        end_time=2.0,
        generation_parameters={},
        samples=[sample, {**sample, "id": 2}],
    )
    append_samples(tmp_path / "all.jsonl", [sample], step=3)
    for name in ("samples.jsonl", "all.jsonl"):
        assert "tokens" not in (tmp_path / name).read_text()
    assert '"tokens": [[1]]' in (tmp_path / "transcripts.jsonl").read_text()
    assert "|reward||1.0000|±|0.0000|" in capsys.readouterr().out


HOSTILE = [
    {"id": "q\u2028x", "score": 1.0, "answer": "y"},
    {"id": "q", "score": 1.0, "prompt": "x", "completion": "cut \ud83d"},
    {"id": "q", "score": float("nan"), "prompt": "x", "completion": "y"},
    {"id": "q", "score": 1.0, "seen": {"b", "a"}, "loss": float("inf")},
    {"id": "q", "score": 1.0, "prompt": [{"role": "user", "content": "\x85\ud83d"}]},
    {"id": 10**30, "score": 1, "made_by": object()},
]


@pytest.mark.parametrize("sample", HOSTILE)
def test_no_sample_of_an_evaluation_is_lost_to_one_value(tmp_path, sample):
    report_results(
        tmp_path,
        {"score": float("nan")},
        task="toy",
        model_name="m",
        start_time=1.0,
        end_time=2.0,
        generation_parameters={"stop": {"a"}},
        samples=[sample, {"id": "other", "score": 0.5}],
        verbose=False,
    )
    for name in ("metrics.json", "samples.jsonl"):
        (json_lines if name.endswith("l") else json.loads)((tmp_path / name).read_text())
    assert "NaN" not in (tmp_path / "samples.jsonl").read_text()
    assert eval_diff.main([str(tmp_path), str(tmp_path), "--metric", "score"]) == 0
