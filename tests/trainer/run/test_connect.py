from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing

import pytest

from atroposlib.client import RolloutClient
from atroposlib.errors import InferenceUnavailable
from atroposlib.wire import ServerDirectory
from atroposlib.wire.status import ServerState
from example_trainer.run.connect import HeartbeatThread, ServerRoster, WaitReporter
from example_trainer.state import StopSignal
from example_trainer.weights.engines import ServerGone
from example_trainer.weights.fleet import Fleet
from tests.client.harness import announced, served_api
from tests.trainer.checkpoint.killed_trainer import until
from tests.trainer.weights.support.engine_fakes import sglang_app


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
    found = pulse._timed_heartbeat().details
    assert 0 <= found["phase_median_s"] < 30 and 0 <= found["phase_s"] < 30


def test_a_heartbeat_has_an_evaluation_only_while_it_runs():
    pulse = HeartbeatThread(lambda beat: None, "trainer x")
    pulse.follow_evaluation(lambda: {"evaluated_version": 20})
    assert pulse._timed_heartbeat().details["evaluated_version"] == 20
    pulse.follow_evaluation(dict)
    assert "evaluated_version" not in pulse._timed_heartbeat().details


def test_a_publish_waits_on_the_absent_server_and_training_does_not():
    pulse = HeartbeatThread(lambda beat: None, "trainer x")
    pulse.servers = lambda: [
        ServerState(url="http://gpu0:9001"),
        ServerState(url="http://gpu1:9001", silent_s=3.0),
    ]
    pulse.phase("training")
    assert pulse._timed_heartbeat().waiting_on is None
    pulse.phase("publishing weights")
    assert pulse._timed_heartbeat().waiting_on == "inference server http://gpu1:9001"
    pulse.waiting_on("an answer of both")
    beat = pulse._timed_heartbeat()
    waits = ["inference server http://gpu1:9001", "an answer of both"]  # outer cause first
    assert [wait.on for wait in beat.waits] == waits and beat.waiting_on == waits[0]
    assert [wait.age_s >= 0 for wait in beat.waits] == [True, True]


# --- servers of the directory -----------------------------------------------------------


@pytest.fixture
def roster(config):
    with ExitStack() as stack:

        def make(api: str, **settings):
            cfg = config(inference_urls=["directory://"], **settings)
            waits = WaitReporter(StopSignal(), HeartbeatThread(lambda beat: None, "trainer"))
            made = ServerRoster(cfg, waits, stack)
            client = stack.enter_context(closing(RolloutClient(api)))
            return made, lambda: made.connect_all(client, api)

        yield make


def test_a_run_begins_with_the_wanted_servers_and_others_join_and_leave(roster, serve):
    urls = [serve(sglang_app([])) for _ in range(3)]
    with served_api() as api, announced(api, "a", urls[0]), announced(api, "b", urls[1]):
        made, connect_all = roster(api, inference_min_ready=2)
        fleet = Fleet(connect_all(), timeout_s=10)
        assert sorted(fleet.urls) == sorted(urls[:2])
        with announced(api, "c", urls[2]):
            until(lambda: made.follow(fleet) or len(fleet.engines) == 3)
        assert urls[2] in fleet.absent  # until it was given the current weights


def test_a_run_that_waited_too_long_begins_with_the_servers_that_are_there(roster, serve):
    with served_api() as api:
        _, connect_all = roster(api, inference_min_ready=2, server_timeout_s=0.01)
        with pytest.raises(InferenceUnavailable, match="^0 of 2 inference servers"):
            connect_all()
        with RolloutClient(api) as client, announced(api, "a", serve(sglang_app([]))):
            until(lambda: client.servers().servers)
            assert len(connect_all()) == 1


def test_a_server_that_left_is_forgotten_only_while_it_is_absent(roster, serve, monkeypatch):
    url, gone = serve(sglang_app([])), serve(sglang_app([]))
    with served_api() as api, announced(api, "a", url), announced(api, "b", gone):
        made, connect_all = roster(api, inference_min_ready=2)
        fleet = Fleet(connect_all(), timeout_s=10)
        remaining = ServerDirectory(instance="i", complete=True, servers=[])
        listed = made._api.servers()
        remaining.servers = [one for one in listed.servers if one.url == url]
        monkeypatch.setattr(made._api, "servers", lambda: remaining)
        made.follow(fleet)
        assert len(fleet.engines) == 2
        fleet.leave_out([(gone, ServerGone("no answer"))])
        made.follow(fleet)
        assert [engine.url for engine in fleet.engines] == [url] and not fleet.absent


def test_a_wait_has_the_cause_that_its_caller_names():
    """The cause is not guessed from the words, which name a server and the API at once."""
    pulse = HeartbeatThread(lambda beat: None, "trainer x")
    waits = WaitReporter(StopSignal(), pulse)
    waits("rollout API at http://api: refused, for an inference server", cause="server")
    assert [wait.cause for wait in pulse._timed_heartbeat().waits] == ["server"]
    waits("a batch: 3 of 8 sequences queued", cause="batch")
    assert [wait.cause for wait in pulse._timed_heartbeat().waits] == ["batch"]
