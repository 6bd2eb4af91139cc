from __future__ import annotations

import json
import threading

from atroposlib.wire import ClaimedBatch
from example_trainer.data import to_rows
from example_trainer.heartbeat import Pulse
from example_trainer.metrics import Clock, MetricsLog, batch_metrics
from tests.trainer.rows import scored


def test_a_line_is_readable_as_soon_as_it_is_written(config, capsys):
    cfg = config()
    with MetricsLog(cfg) as log:
        log.write({"step": 1, "tokens": 10, "loss": float("nan"), "seconds_train": 2.0})
        (line,) = cfg.metrics_file.read_text().splitlines()
    record = json.loads(line)
    assert record["loss"] is None  # NaN is not JSON
    assert record["tokens_per_s"] == 5.0
    assert "step 1" in capsys.readouterr().out


def test_benchmark_prints_the_mean_of_every_phase(config, capsys):
    with MetricsLog(config(benchmark=True)) as log:
        log.write({"step": 1, "tokens": 10, "seconds_train": 1.0, "seconds_publish": 0.5})
        log.write({"step": 2, "tokens": 10, "seconds_train": 3.0})
    assert "publish 0.25 s, train 2.00 s" in capsys.readouterr().out


def test_what_a_batch_tells(config):
    groups = [
        scored([[1, 2, 3], [1, 2, 4]], 1, [1.0, 0.0], group_id="a", idempotency_key="k-1"),
        scored([[1, 2]], 1, [0.5], versions=[[-1, 2]]),
    ]
    batch = to_rows(groups, 64)
    claimed = ClaimedBatch(batch_no=9, epoch=1, batch=groups)
    told = batch_metrics(claimed, batch, batch.rows, version=5)
    assert (told["batch_no"], told["reward_mean"]) == (9, 0.5)
    assert (told["keys"], told["group_ids"]) == (["k-1", None], ["a", None])
    assert (told["tokens"], told["completion_tokens"]) == (8, 5)
    assert (told["staleness_mean"], told["staleness_max"]) == (3.0, 3)


def test_the_clock_adds_up_and_starts_again():
    clock = Clock()
    for _ in range(2):
        with clock.measure("train"):
            pass
    assert clock.take().keys() == {"seconds_train"} and clock.take() == {}


def test_the_pulse_beats_during_a_long_phase_and_tells_its_last():
    beats, seen = [], threading.Semaphore(0)

    def send(beat):
        beats.append(beat)
        seen.release()

    with Pulse(send, "trainer x") as pulse:
        pulse.phase("training", step=3)
        while beats[-1:] == [] or beats[-1].phase != "training":
            assert seen.acquire(timeout=30)
        pulse.waiting_on("a batch: " + 1000 * "x")
        pulse.phase("done")
    assert beats[-1].phase == "done" and beats[-1].details == {"step": 3}
    assert {beat.role for beat in beats} == {"trainer"}
