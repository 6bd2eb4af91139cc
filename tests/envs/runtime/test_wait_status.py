"""Wait reasons in the log."""

from __future__ import annotations

import logging

from atroposlib.envs.runtime.wait_status import WaitStatus


def test_a_wait_is_logged_at_its_beginning_and_every_ten_seconds(caplog):
    caplog.set_level(logging.INFO)
    now = [100.0]
    one = WaitStatus("toy", clock=lambda: now[0])
    for second in range(65):
        now[0] = 100.0 + second
        one.start(f"waiting for rollout API at http://api: refused, {second} s")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 7 and "toy waits for rollout API" in said[0]
    assert one.on.endswith("64 s") and one.seconds() == 64
    one.clear()
    assert one.on is None and "continues after 64 s" in caplog.records[-1].getMessage()


def test_a_usual_wait_is_logged_only_after_ten_seconds(caplog):
    caplog.set_level(logging.INFO)
    now = [100.0]
    one = WaitStatus("toy", clock=lambda: now[0])
    one.start("the trainer to take a batch", usual=True)
    one.clear()
    assert caplog.records == []
    one.start("the trainer to take a batch", usual=True)
    now[0] += 11
    one.start("the trainer to take a batch", usual=True)
    assert len(caplog.records) == 1
