from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from atroposlib.errors import ConfigError
from atroposlib.trackers.jsonl import last_run, read_steps
from atroposlib.wire import ClaimedBatch
from example_trainer.advantage.prepare import Prepared
from example_trainer.data.rows import to_rows
from example_trainer.run.display import LineDisplay
from example_trainer.run.evaluation import Evaluation, EvaluationOutcome, Measured
from example_trainer.run.metrics_log import Clock, MetricsLog, batch_metrics
from tests.trainer.rows import scored


def test_a_line_is_readable_as_soon_as_it_is_written(config, caplog):
    caplog.set_level("INFO")
    cfg = config()
    with MetricsLog(cfg, LineDisplay()) as log:
        log.write({"step": 1, "tokens": 10, "loss": float("nan"), "seconds_train": 2.0})
        (line,) = cfg.metrics_file.read_text().splitlines()
    record = json.loads(line)
    assert record["loss"] is None  # NaN is not JSON
    assert record["tokens_per_s"] == 5.0
    assert "step 1" in caplog.text


def test_tokens_per_second_count_preparing_and_learning(config):
    cfg = config()
    with MetricsLog(cfg, LineDisplay()) as log:
        seconds = {"seconds_prepare": 1.0, "seconds_learn": 3.0, "seconds_publish": 9.0}
        log.write({"step": 1, "tokens": 8, **seconds})
    assert read_steps(cfg.metrics_file)[0]["tokens_per_s"] == 2.0


def test_benchmark_prints_the_mean_of_every_phase(config, caplog):
    caplog.set_level("INFO")
    with MetricsLog(config(benchmark=True), LineDisplay()) as log:
        log.write({"step": 1, "tokens": 10, "seconds_train": 1.0, "seconds_publish": 0.5})
        log.write({"step": 2, "tokens": 10, "seconds_train": 3.0})
    assert "publish 0.25 s, train 2.00 s" in caplog.text


def test_batch_metrics():
    groups = [
        scored([[1, 2, 3], [1, 2, 4]], 1, [1.0, 0.0], group_id="a", idempotency_key="k-1"),
        scored([[1, 2]], 1, [0.5], versions=[[-1, 2]]),
    ]
    batch = to_rows(groups, 64)
    claimed = ClaimedBatch(batch_no=9, epoch=1, batch=groups)
    prepared = Prepared(batch.rows, [], counts=Counter(few=1), sums={"kl_reference": 2.5})
    told = batch_metrics(claimed, batch, prepared, version=5)
    assert (told["kl_reference"], told["few"]) == (0.5, 1)
    assert (told["batch_no"], told["reward_mean"]) == (9, 0.5)
    assert (told["keys"], told["group_ids"]) == (["k-1", None], ["a", None])
    assert (told["tokens"], told["completion_tokens"]) == (8, 5)
    assert (told["staleness_mean"], told["staleness_max"]) == (3.0, 3)
    assert told["staleness_counts"] == {3: 1}
    assert (told["prompt_length_mean"], told["prompt_length_max"]) == (1.0, 1)
    assert (told["completion_length_mean"], told["completion_length_max"]) == (5 / 3, 2)
    assert told["filtered_share"] == 0.0
    assert told["truncated_share"] is None  # no engine returned why it stopped


def test_truncated_share_uses_finish_reasons_and_filtered_share_all_rows():
    reasons = ["length", "stop", None, "length"]
    rows = [[1, 2, 3]] * 4
    outcomes = ["truncated", "ok", "ok", "timeout"]
    group = scored(rows, 1, [1.0, 0.0, 0.0, 0.0], finish_reasons=reasons, outcomes=outcomes)
    batch = to_rows([group], 64)
    prepared = Prepared(batch.rows[:2], [])
    told = batch_metrics(ClaimedBatch(batch=[group]), batch, prepared, version=0)
    assert told["truncated_share"] == 0.5  # the two rows that count and have a reason
    assert told["filtered_share"] == 0.5  # one failed, one was left out later


def test_a_batch_without_rows_has_no_statistics():
    told = batch_metrics(ClaimedBatch(batch=[]), to_rows([], 64), Prepared([], []), version=0)
    assert (told["reward_mean"], told["staleness_p95"], told["staleness_max"]) == (None,) * 3


def test_clock_sums_phases_and_restarts_at_zero():
    clock = Clock()
    for _ in range(2):
        with clock.measure("train"):
            pass
    assert clock.take().keys() == {"seconds_train"} and clock.take() == {}


def test_steps_trained_again_after_a_restart_replace_the_earlier_lines(config):
    cfg = config()
    with MetricsLog(cfg, LineDisplay()) as log:
        log.begin("run-a", 0)
        for step in (1, 2, 3):
            log.write({"step": step, "tokens": 1, "loss": 0.0})
    with cfg.metrics_file.open("ab") as file:
        file.write(b'{"step": 4, "lo')  # killed while it wrote
    with MetricsLog(cfg, LineDisplay()) as log:
        log.begin("run-a", 1)
        for step in (2, 3):
            log.write({"step": step, "tokens": 1, "loss": 1.0})
    found = read_steps(cfg.metrics_file)
    assert [(line["step"], line["loss"]) for line in found] == [(1, 0.0), (2, 1.0), (3, 1.0)]
    # Neither the torn line nor a second one of a step: a reader of lines can.
    lines = [json.loads(line) for line in cfg.metrics_file.read_text().splitlines()]
    assert [line["step"] for line in lines if "step" in line] == [1, 2, 3]


def test_reader_returns_the_last_run_without_rewound_steps():
    lines = [{"step": n, "run_id": "a"} for n in range(1, 9)]
    lines += [{"step": n, "run_id": "b"} for n in (1, 2, 3)]
    assert [line["step"] for line in last_run(lines)] == [1, 2, 3]
    lines += [{"run_id": "b", "resumed_from": 1}]
    assert [line["step"] for line in last_run(lines)] == [1]


def test_unwritable_metrics_file_is_a_config_error(config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="metrics_path"):
        cfg = config(metrics_path=str(tmp_path / "file" / "metrics.jsonl"))
        MetricsLog(cfg, LineDisplay())


def test_an_evaluation_that_ended_later_is_logged_under_its_own_step_and_version(config):
    cfg = config(trackers=[f"{__file__}:Listed"])
    measured = Measured("sums", EvaluationOutcome.DONE, {"exact": 0.5})
    ended = Evaluation(1, 1, "held", []).with_results([measured], 2.0)
    with MetricsLog(cfg, LineDisplay()) as log:
        log.begin("a", 0)
        for step in (1, 2, 3):
            log.write({"step": step, "tokens": 1})
        log.log_evaluation(ended)
        log.log_evaluation(Evaluation(2, 2, "held", []).with_problem("gone", 1.0))
    numbers = {"eval/sums/exact": 0.5, "eval/version": 1, "eval/seconds": 2.0}
    tracked = [
        json.loads(x) for x in Path(cfg.log_dir, "listed.jsonl").read_text().splitlines()
    ]
    assert tracked[-1] == [1, numbers] and len(tracked) == 4
    first, second, _ = read_steps(cfg.metrics_file)
    assert first.items() >= {**numbers, "evaluated_version": 1, "evaluation": "done"}.items()
    assert second["evaluation"] == "failed" and second["evaluation_problem"] == "gone"
    assert not [name for name in second if name.startswith("eval/")]


class Listed:
    """A tracker: a line of its file for each call."""

    def __init__(self, run):
        self._path = run.directory / "listed.jsonl"

    def log(self, metrics, step):
        with self._path.open("a") as file:
            file.write(json.dumps([step, metrics]) + "\n")

    def close(self):
        pass
