"""Metrics of an environment and their sinks."""

from __future__ import annotations

import json

import numpy as np

from atroposlib.envs.runtime.metrics_logger import JsonlSink, MetricsLogger, WandbSink, scalars


def test_metrics_are_one_json_line_per_emission(tmp_path):
    path = tmp_path / "deep" / "metrics.jsonl"
    book = MetricsLogger([JsonlSink(path, "toy")])
    book.log("exact", 1.0)
    book.log("exact", 0.0)
    book.emit({**book.averages(), "table": object(), "n": np.int64(3), "bad": np.nan}, step=7)
    assert book.averages() == {}
    line = json.loads(path.read_text())  # flushed before it is closed
    book.close()
    del line["time"]
    assert line == {"env": "toy", "step": 7, "exact": 0.5, "n": 3, "bad": None}


def test_only_numbers_and_words_are_scalars():
    given = {"a": 1, "b": [1], "c": "x", "d": None, "e": {}, "f": float("inf")}
    assert scalars(given) == {"a": 1, "c": "x", "d": None, "f": None}


def test_only_train_names_are_prefixed_for_wandb():
    class Run:
        def log(self, metrics, step):
            self.logged = (metrics, step)

    sink = WandbSink(Run())
    sink.prefix = "toy_0_"
    sink.write({"train/x": 1, "train_perf/y": 2, "eval/z": 3, "server/server_0_a": 4}, 7)
    assert sink._run.logged == (
        {"toy_0_train/x": 1, "toy_0_train_perf/y": 2, "eval/z": 3, "server/server_0_a": 4},
        7,
    )
