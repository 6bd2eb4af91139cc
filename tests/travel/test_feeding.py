"""Feeding: a trainer of a real API claims exactly the recorded batches."""

from __future__ import annotations

import asyncio
import threading

import pytest

from atroposlib.api.server import create_app
from atroposlib.client import AsyncRolloutClient, RolloutClient
from atroposlib.errors import ConfigError, RolloutApiUnavailable
from atroposlib.travel.feeding import FeedSettings, feed, require_empty
from atroposlib.travel.recorded_batches import Changes, RecordedRun
from tests.serving import served
from tests.travel.recorded import planted_run, post_group, registration, sums_group

WAIT_S = 600


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with RecordedRun(
        planted_run(tmp_path_factory.mktemp("fed") / "run") / "queue"
    ) as recorded:
        yield recorded


@pytest.fixture
def api():
    with served(create_app()) as url:
        yield url


def fed(api, run, changes=Changes(), bound_s=WAIT_S):
    async def call():
        async with AsyncRolloutClient(api) as client:
            await require_empty(client, api)
            return await feed(client, run, run.batches, FeedSettings(changes, bound_s))

    return asyncio.run(call())


def claimed_by(api, count, prefetch, starting_step=0):
    """Batches that a trainer claims; a prefetching trainer acks a batch after the next claim."""
    batches = []
    with RolloutClient(api) as trainer:
        trainer.register(registration(8, starting_step=starting_step))
        open_batches = []
        while len(batches) < count:
            claimed = trainer.claim(lease_s=WAIT_S, wait_s=5)
            if claimed.batch is None:
                continue
            batches.append(claimed.batch)
            open_batches.append(claimed)
            if len(open_batches) > prefetch:
                trainer.ack(open_batches.pop(0))
    return batches


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_trainer_gets_the_recorded_batches_in_their_order(api, run, prefetch):
    batches = []
    trainer = threading.Thread(target=lambda: batches.extend(claimed_by(api, 4, prefetch)))
    trainer.start()
    assert fed(api, run) == 4
    trainer.join(WAIT_S)
    recorded = [run.groups(batch, Changes()) for batch in run.batches]
    for batch, wanted in zip(batches, recorded, strict=True):
        assert [group.group_id for group in batch] == [group.group_id for group in wanted]
        assert [group.scores for group in batch] == [group.scores for group in wanted]
        assert [group.tokens for group in batch] == [group.tokens for group in wanted]
        assert [group.inference_logprobs for group in batch] == [
            group.inference_logprobs for group in wanted
        ]


def test_an_api_with_groups_is_refused(api, run):
    with RolloutClient(api) as trainer:
        trainer.register(registration(8))
        post_group(api, sums_group(1, ["2"], [1.0]))
        with pytest.raises(ConfigError, match="has 1 groups"):
            fed(api, run)


def test_a_trainer_of_another_batch_size_is_refused(api, run):
    with RolloutClient(api) as trainer:
        trainer.register(registration(16))
        trainer.claim(lease_s=WAIT_S, wait_s=0)
        with pytest.raises(ConfigError, match="has 8 rollouts, the trainer takes 16"):
            fed(api, run)


@pytest.mark.parametrize(
    ("registers", "text"), [(False, "no trainer began"), (True, "did not claim batch 1")]
)
def test_a_trainer_that_does_not_come_ends_the_wait(api, run, registers, text):
    with RolloutClient(api) as trainer:
        if registers:
            trainer.register(registration(8))
            trainer.claim(lease_s=WAIT_S, wait_s=0)
        with pytest.raises(RolloutApiUnavailable, match=text):
            fed(api, run, bound_s=0.0)
