from __future__ import annotations

import threading
import time

from atroposlib.wire.status import ServerState
from example_trainer.run.connect import HeartbeatThread


def test_heartbeats_continue_in_a_long_phase_and_include_the_last_phase():
    beats, seen = [], threading.Semaphore(0)

    def send(beat):
        beats.append(beat)
        seen.release()

    with HeartbeatThread(send, "trainer x") as pulse:
        pulse.servers = lambda: [ServerState(url="http://gpu1:9001", silent_s=3.0)]
        pulse.phase("training", step=3)
        while beats[-1:] == [] or beats[-1].phase != "training":
            assert seen.acquire(timeout=600)
        pulse.waiting_on("a batch: " + 1000 * "x")
        pulse.phase("done")
    details = dict(beats[-1].details)
    assert 0 < details.pop("clock") <= time.time()
    assert details.pop("phase_s") >= 0 and beats[-1].phase == "done"
    waits = {"waits_for": "http://gpu1:9001"}
    assert details == {"life": pulse.life, "step": 3, "ended": 1, **waits}
    assert {beat.role for beat in beats} == {"trainer"}


def test_a_phase_that_was_left_before_has_the_median_of_its_seconds():
    pulse = HeartbeatThread(lambda beat: None, "trainer x")
    for phase in ("training", "saving", "training", "saving", "training"):
        pulse.phase(phase)
    found = pulse._timed().details
    assert 0 <= found["phase_median_s"] < 30 and 0 <= found["phase_s"] < 30


def test_a_publish_waits_on_the_absent_server_and_training_does_not():
    pulse = HeartbeatThread(lambda beat: None, "trainer x")
    pulse.servers = lambda: [
        ServerState(url="http://gpu0:9001"),
        ServerState(url="http://gpu1:9001", silent_s=3.0),
    ]
    pulse.phase("training")
    assert pulse._timed().waiting_on is None
    pulse.phase("publishing weights")
    assert pulse._timed().waiting_on == "inference server http://gpu1:9001"
    pulse.waiting_on("an answer of both")
    assert pulse._timed().waiting_on == "an answer of both"
