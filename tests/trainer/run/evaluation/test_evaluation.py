"""Tests of the results of an evaluation: what is a number, under which name, and what is none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from example_trainer.run.evaluation import (
    Evaluation,
    EvaluationOutcome,
    Measured,
    evaluation_numbers,
    read_partial,
    read_record,
    read_result,
)

RUNNING = Evaluation(step=7, version=6, where="held", servers=["http://a:1"])
WHOLE = Measured("sums", EvaluationOutcome.DONE, {"exact": 0.5, "items": 4.0}, {"exact": 0.25})
CUT = Measured(
    "sums", EvaluationOutcome.PARTIAL, {"exact": 1.0, "items": 2.0}, {}, 4, "not done"
)
BROKEN = Measured("sums", EvaluationOutcome.FAILED, problem="exit code 1")


def write(path, document):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def test_only_results_of_environment_metrics_are_numbers():
    document = {
        "config_general": {"start": 12.5},
        "results": {
            "atropos|gsm8k|0": {"accuracy": 0.25},
            "all": {"accuracy": 0.5, "n": 4, "none": None, "nan": float("nan")},
        },
    }
    assert evaluation_numbers(document) == {
        "atropos|gsm8k|0/accuracy": 0.25,
        "accuracy": 0.5,
        "n": 4.0,
    }


def test_of_an_environment_the_results_of_all_tasks_and_their_errors_are_read(tmp_path):
    results = {"atropos|sums|0": {"exact": 0.5}, "all": {"exact": 0.5}}
    document = {"results": results, "standard_errors": {"exact": 0.25}}
    path = write(tmp_path / "metrics.json", document)
    (tmp_path / "samples.jsonl").write_text("{}\n" * 4)
    assert read_result("sums", path) == WHOLE


def test_numbers_are_named_by_environment_with_errors_version_and_seconds():
    assert RUNNING.with_results([WHOLE], 2.5).metrics() == {
        "eval/sums/exact": 0.5,
        "eval/sums/items": 4.0,
        "eval/sums/stderr/exact": 0.25,
        "eval/version": 6,
        "eval/seconds": 2.5,
    }
    command = Measured("", EvaluationOutcome.DONE, {"share": 0.5})
    assert RUNNING.with_results([command], 1.0).metrics()["eval/share"] == 0.5


def test_partial_results_have_names_of_their_own():
    ended = RUNNING.with_results([CUT], 9.0)
    assert ended.outcome is EvaluationOutcome.PARTIAL and not ended.has_failed
    assert [name for name in ended.metrics() if "exact" in name] == ["eval_partial/sums/exact"]


@pytest.mark.parametrize(
    "ended",
    [
        RUNNING.with_results([BROKEN], 1.0),
        RUNNING.with_problem("the server is gone", 1.0),
        RUNNING.as_lost(),
        RUNNING.with_results([], 1.0),
    ],
)
def test_a_failed_or_lost_evaluation_has_no_number(ended):
    assert ended.has_failed and ended.metrics() == {}


def test_an_evaluation_is_as_good_as_its_worst_program():
    assert RUNNING.with_results([WHOLE, CUT], 1.0).outcome is EvaluationOutcome.PARTIAL
    both = RUNNING.with_results([WHOLE, BROKEN, CUT], 1.0)
    assert (
        both.outcome is EvaluationOutcome.FAILED
        and both.why == "sums: exit code 1; sums: not done"
    )
    assert "eval/sums/exact" in both.metrics()  # one that is whole stays


def test_partial_results_tell_how_many_samples_the_whole_has(tmp_path):
    about = {
        "config_general": {"partial_of": 4},
        "results": {"all": {"exact": 1.0, "items": 2}},
    }
    part = read_partial("sums", write(tmp_path / "p" / "metrics.json", about), "not done")
    assert part == CUT


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"results": {"all": {"exact": 1.0, "items": 2}}},
        {"config_general": {"partial_of": 4}, "results": {"all": {"exact": 1.0, "items": 0}}},
    ],
)
def test_without_a_finished_task_there_is_no_partial_result(tmp_path, document):
    path = tmp_path / "metrics.json"
    if document is not None:
        write(path, document)
    part = read_partial("sums", path, "not done after 2 s")
    assert part.outcome is EvaluationOutcome.FAILED and part.metrics() == {}
    assert part.problem == "not done after 2 s, without partial results"


@pytest.mark.parametrize(
    "ended", [RUNNING, RUNNING.with_results([WHOLE, CUT], 2.0), RUNNING.as_lost()]
)
def test_a_record_is_read_as_it_was_written(tmp_path, ended):
    path = tmp_path / "evaluation.json"
    path.write_text(ended.to_json())
    assert read_record(path) == ended


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"parts": [1]}', '{"parts": []}'])
def test_a_damaged_record_is_none(tmp_path, text):
    path = tmp_path / "evaluation.json"
    path.write_text(text)
    assert read_record(path) is None and read_record(tmp_path / "none") is None


def test_a_figure_that_is_nan_or_infinite_is_named_and_the_others_count(tmp_path):
    path = write(tmp_path / "metrics.json", {"exact": float("nan"), "n": 4, "large": 10**400})
    result = read_result("", path)
    assert result.outcome is EvaluationOutcome.DONE and result.numbers == {"n": 4.0}
    assert result.problem == f"{path}: exact, large: NaN or infinite"
    assert "exact" in RUNNING.with_results([result], 1.0).line()
    alone = read_result("", write(path, {"exact": float("inf")}))
    assert alone.outcome is EvaluationOutcome.FAILED and "exact: NaN" in alone.problem


KEYS = st.sampled_from(
    ["results", "all", "items", "exact", "standard_errors", "config_general", "partial_of"]
)
NUMBERS = st.integers() | st.just(10**400) | st.floats()
VALUES = st.recursive(
    NUMBERS | st.none() | st.text(max_size=3) | st.booleans(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4) | VALUES, st.sampled_from(["", "sums"]))
def test_whatever_a_program_writes_is_a_result_or_a_named_failure(
    tmp_path_factory, document, name
):
    path = write(tmp_path_factory.getbasetemp() / "evaluated" / "metrics.json", document)
    for result in (read_result(name, path), read_partial(name, path, "late")):
        assert result.numbers or (
            result.outcome is EvaluationOutcome.FAILED and result.problem
        )
        assert json.loads(RUNNING.with_results([result], 1.0).to_json())


def test_a_file_nested_too_deeply_is_a_failure(tmp_path):
    path = tmp_path / "metrics.json"
    path.write_text('{"a":' * 10**5 + "1" + "}" * 10**5)
    assert read_result("", path).outcome is EvaluationOutcome.FAILED
    assert read_partial("", path, "late").outcome is EvaluationOutcome.FAILED
