from __future__ import annotations

import threading

from example_trainer.run.connect import HeartbeatThread


def test_heartbeats_continue_in_a_long_phase_and_include_the_last_phase():
    beats, seen = [], threading.Semaphore(0)

    def send(beat):
        beats.append(beat)
        seen.release()

    with HeartbeatThread(send, "trainer x") as pulse:
        pulse.phase("training", step=3)
        while beats[-1:] == [] or beats[-1].phase != "training":
            assert seen.acquire(timeout=30)
        pulse.waiting_on("a batch: " + 1000 * "x")
        pulse.phase("done")
    assert beats[-1].phase == "done" and beats[-1].details == {
        **{"life": pulse.life, "step": 3, "ended": 1}
    }
    assert {beat.role for beat in beats} == {"trainer"}
