"""Lease extension from a background thread, and loss of the lease."""

from __future__ import annotations

import httpx
import pytest

from atroposlib.client import LeaseKeeper, RolloutClient
from atroposlib.errors import StaleGeneration
from atroposlib.wire import ClaimedBatch
from tests.client.harness import URL, group, post, registration, served_api


def claimed_by(transport):
    trainer = RolloutClient(URL, transport=transport)
    generation = trainer.register(registration()).generation
    post(transport, group())
    helper = RolloutClient(URL, transport=transport)
    helper.adopt_generation(generation)
    return trainer, helper, trainer.claim(wait_s=0, lease_s=10)


def test_a_kept_lease_is_extended_beyond_its_first_expiry(transport, clock):
    trainer, helper, claimed = claimed_by(transport)
    with LeaseKeeper(helper, claimed, lease_s=100) as held:
        pass
    held.check()
    clock.now += 50
    assert trainer.claim(wait_s=0).batch is None
    assert trainer.ack(claimed) is True


def test_a_lost_lease_is_raised_by_check_and_does_not_interrupt_the_step(transport):
    _, helper, claimed = claimed_by(transport)
    RolloutClient(URL, transport=transport).register(registration())
    with LeaseKeeper(helper, claimed, lease_s=100) as held:
        pass
    with pytest.raises(StaleGeneration):
        held.check()


def test_an_unreachable_api_does_not_lose_the_lease():
    away = RolloutClient(URL, give_up_after_s=0)
    away.adopt_generation(1)
    with LeaseKeeper(away, ClaimedBatch(batch_no=1, epoch=1), lease_s=100) as held:
        pass
    held.check()


def test_keep_lease_uses_a_separate_connection():
    with served_api() as url, RolloutClient(url) as trainer:
        trainer.register(registration())
        body = {"tokens": [[1, 7]] * 2, "masks": [[-100, 7]] * 2, "scores": [0.5, 1.0]}
        assert httpx.post(f"{url}/scored_data", json=body).status_code == 200
        claimed = trainer.claim(wait_s=0, lease_s=10)
        with trainer.keep_lease(claimed, lease_s=60) as held:
            held.check()
        assert trainer.ack(claimed) is True
        with pytest.raises(ValueError, match="no batch"):
            trainer.keep_lease(ClaimedBatch())
