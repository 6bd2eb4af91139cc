from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace

import pytest

from atroposlib.client import RolloutClient
from atroposlib.processes import free_port
from example_trainer.model.model_dir import TrainerState
from example_trainer.run.prefetch import BatchPrefetcher, NoBatchLeft
from example_trainer.state import StopSignal, end


def test_no_batch_is_left_once_two_claims_failed_after_the_word_of_the_launcher(
    monkeypatch,
):
    prefetcher, has_ended = SimpleNamespace(refusals=7), [False]
    monkeypatch.setattr(end, "have_environments_ended", lambda: has_ended[0])
    is_over = NoBatchLeft(prefetcher)
    assert not is_over()
    has_ended[0] = True
    answers = []
    for refusals in (7, 8, 0, 1, 2):  # a batch came after the eighth
        prefetcher.refusals = refusals
        answers.append(is_over())
    assert answers == [False, False, False, False, True]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_stop_while_the_api_is_away_ends_the_claims_without_an_exception():
    stop = StopSignal()
    stop.reason = "SIGTERM"
    url = f"http://127.0.0.1:{free_port()}"
    state = TrainerState("run", step=0, version=0, batch_no=0)
    with closing(RolloutClient(url, on_wait=lambda _what: stop.check())) as client:
        client.adopt_generation(1)  # as a registered trainer
        batches = BatchPrefetcher(client, state, batches=1, ahead=True, lease_s=60.0)
        with batches:
            batches._thread.join(timeout=600)
        assert not batches._thread.is_alive()
