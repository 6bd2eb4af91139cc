"""Background threads of the trainer: an unexpected error is raised in the loop, or logged."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from atroposlib.client import LeaseKeeper
from atroposlib.wire import ClaimedBatch
from example_trainer.model.model_dir import TrainerState
from example_trainer.run.connect import HeartbeatThread
from example_trainer.run.prefetch import BatchPrefetcher
from example_trainer.run.reports import Reporter
from example_trainer.weights.publisher import Keeper

ERRORS = pytest.mark.parametrize("error", [OverflowError, ValueError, KeyError, MemoryError])
BATCH = ClaimedBatch(batch_no=3, epoch=1, batch=[])


class Broken:
    """A client, or a publisher, whose calls fail in a way that nothing expects."""

    def __init__(self, error):
        self.error, self.called = error, threading.Event()

    def _fail(self, *args, **more):
        self.called.set()
        raise self.error("odd")

    claim = extend = look = _fail

    def close(self):
        pass


@ERRORS
def test_claims_that_fail_unexpectedly_end_the_loop_and_not_in_silence(error):
    state = TrainerState("run", step=0, version=0, batch_no=0)
    batches = BatchPrefetcher(Broken(error), state, batches=1, ahead=True, lease_s=60.0)
    with batches, pytest.raises(error):
        batches.poll(600.0)


@ERRORS
def test_a_lease_that_cannot_be_extended_is_lost(error):
    with LeaseKeeper(broken := Broken(error), BATCH, 0.1) as keeper:
        keeper._thread.join()
    assert broken.called.is_set()
    with pytest.raises(error):
        keeper.check()


@ERRORS
def test_a_look_at_the_servers_that_fails_ends_the_next_wait(error, monkeypatch):
    monkeypatch.setattr("example_trainer.weights.publisher.POLL_S", 0.0)
    with Keeper(Broken(error)) as keeper:
        keeper._thread.join()
    with pytest.raises(error):
        keeper.check()


@ERRORS
def test_a_heartbeat_that_fails_is_logged_and_the_next_is_sent(error, caplog):
    sent = []

    def send(beat):
        sent.append(beat.phase)
        if len(sent) == 1:
            raise error("odd")

    with HeartbeatThread(send, "trainer x"):
        pass
    assert len(sent) >= 2 or "a heartbeat is lost" in caplog.text
    assert "a heartbeat is lost" in caplog.text


@ERRORS
def test_a_report_that_fails_unexpectedly_is_logged_counted_and_the_next_is_sent(
    error, caplog
):
    done = []
    with closing(Broken(error)), Reporter("http://localhost:1", lambda: 1, None) as reporter:
        reporter._put(Broken(error)._fail)
        reporter._put(lambda: done.append(1))
    assert (done, reporter.lost) == ([1], 1)
    assert "a report is lost" in caplog.text
