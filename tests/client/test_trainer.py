"""The trainer's client over the real application: claims, ranks, checkpoints, lost replies."""

from __future__ import annotations

import httpx
import pytest

from atroposlib.client import RolloutClient
from atroposlib.client.api_calls import Timing
from atroposlib.errors import (
    CannotRewind,
    NotRegistered,
    RolloutApiUnavailable,
    RunTaken,
    StaleGeneration,
)
from atroposlib.wire import Heartbeat
from tests.client.harness import URL, Lossy, group, post, registration


@pytest.fixture
def trainer(transport):
    with RolloutClient(URL, transport=transport) as client:
        yield client


def losing(transport, path, times=1):
    lossy = Lossy(transport, path, times)
    return RolloutClient(URL, transport=lossy, on_wait=lambda _: None), lossy


def tokens_of(claimed):
    return [one.tokens for one in claimed.batch or []]


def test_a_batch_is_claimed_acked_once_and_counted(transport, trainer):
    registered = trainer.register(registration())
    assert trainer.generation == registered.generation
    assert trainer.claim(wait_s=0).blocked_reason
    post(transport, group())
    claimed = trainer.claim(wait_s=0)
    assert (claimed.batch_no, claimed.epoch, len(claimed.batch or [])) == (1, 1, 1)
    assert trainer.ack(claimed) is True
    assert trainer.ack(claimed) is False
    assert trainer.status().batches_acked == 1
    assert trainer.health()


def test_a_repeated_claim_returns_the_same_batch_after_a_lost_reply(transport):
    client, lossy = losing(transport, "/batches/claim")
    client.register(registration())
    post(transport, group(1), group(2))
    claimed = client.claim(wait_s=0)
    assert lossy.left == 0
    assert (claimed.batch_no, tokens_of(claimed)) == (1, [[[1, 7]] * 2])
    assert client.claim(wait_s=0).batch_no == 2


def test_a_claim_that_timed_out_is_repeated_by_the_next_claim(transport):
    lossy = Lossy(transport, "/batches/claim")
    client = RolloutClient(URL, transport=lossy, give_up_after_s=0)
    client.register(registration())
    post(transport, group(1), group(2))
    with pytest.raises(RolloutApiUnavailable):
        client.claim(wait_s=0)
    assert client.claim(wait_s=0).batch_no == 1


def test_a_late_copy_of_an_empty_claim_takes_no_batch_from_its_trainer(transport):
    class Keeping(httpx.BaseTransport):
        claims: list[httpx.Request] = []

        def handle_request(self, request):
            if request.url.path == "/batches/claim":
                self.claims.append(request)
            return transport.handle_request(request)

    client, kept = RolloutClient(URL, transport=Keeping()), Keeping.claims
    client.register(registration())
    assert client.claim(wait_s=0).batch is None
    post(transport, group(1), group(2))
    assert transport.handle_request(kept[0]).json()["batch_no"] == 1
    assert client.claim(wait_s=0).batch_no == 1


def test_a_trainer_may_fetch_the_next_batch_before_it_acks(transport, trainer):
    trainer.register(registration())
    post(transport, group(1), group(2))
    first, second = trainer.claim(wait_s=0), trainer.claim(wait_s=0)
    assert (first.batch_no, second.batch_no) == (1, 2)
    assert trainer.ack(second) and trainer.ack(first)


def test_a_named_claim_is_repeated_after_a_restart_of_the_process(transport, trainer):
    registered = trainer.register(registration())
    post(transport, group(1), group(2))
    first = trainer.claim(wait_s=0, claim_id="step-1")
    reborn = RolloutClient(URL, transport=transport)
    reborn.adopt_generation(registered.generation)
    again = reborn.claim(wait_s=0, claim_id="step-1")
    assert (again.batch_no, tokens_of(again)) == (first.batch_no, tokens_of(first))


def test_a_lost_ack_reply_acks_once(transport):
    client, lossy = losing(transport, "/batches/1/ack")
    client.register(registration())
    post(transport, group())
    assert client.ack(client.claim(wait_s=0)) is False  # the lost reply was True
    assert lossy.left == 0 and client.status().batches_acked == 1


def test_arrays_and_json_return_the_same_batch(transport, trainer):
    trainer.register(registration(batch_size=4))
    sent = [group(1, versions=[[-1, 3]] * 2, inference_logprobs=[[1.0, -0.5]] * 2), group(2)]
    with httpx.Client(transport=transport, base_url=URL) as http:
        body = [
            {f: getattr(g, f) for f in g.__struct_fields__ if getattr(g, f) is not None}
            for g in sent
        ]
        assert http.post("/scored_data_list", json=body).status_code == 200
    by_json = trainer.claim(wait_s=0, claim_id="one")
    by_arrays = trainer.claim(wait_s=0, claim_id="one", binary=True)
    assert (by_arrays.batch_no, by_arrays.batch) == (by_json.batch_no, by_json.batch)


def test_an_empty_claim_for_arrays_has_a_reason(trainer):
    trainer.register(registration())
    claimed = trainer.claim(wait_s=0, binary=True)
    assert claimed.batch is None and claimed.blocked_reason


def test_ranks_share_a_batch_and_the_last_one_acks_it(transport, trainer):
    registered = trainer.register(registration(batch_size=8))
    post(transport, *(group(mark) for mark in (1, 2, 3, 4)))
    first = trainer.claim(wait_s=0, world_size=2, rank=0)
    assert first.batch_no is not None and first.epoch is not None
    other = RolloutClient(URL, transport=transport)
    other.adopt_generation(registered.generation)
    for binary in (False, True):
        second = other.shard(first.batch_no, first.epoch, 1, binary=binary)
        shards = [*tokens_of(first), *tokens_of(second)]
        assert sorted(tokens[0][0] for tokens in shards) == [1, 2, 3, 4]
        assert (second.batch_no, second.epoch) == (first.batch_no, first.epoch)
    assert trainer.ack(first, rank=0) is False
    assert trainer.status().batches_acked == 0
    assert other.ack(second, rank=1) is True
    assert trainer.status().batches_acked == 1


def test_an_expired_lease_delivers_the_batch_again_and_makes_the_first_delivery_stale(
    transport, trainer, clock
):
    trainer.register(registration())
    post(transport, group())
    first = trainer.claim(wait_s=0, lease_s=10)
    clock.now += 11
    again = trainer.claim(wait_s=0)
    assert (again.batch_no, again.epoch) == (first.batch_no, 2)
    with pytest.raises(StaleGeneration, match="register again to take the run over"):
        trainer.ack(first)


def test_an_extended_lease_keeps_the_batch(transport, trainer, clock):
    trainer.register(registration())
    post(transport, group())
    first = trainer.claim(wait_s=0, lease_s=10)
    trainer.extend(first, lease_s=100)
    clock.now += 50
    assert trainer.claim(wait_s=0).batch is None
    assert trainer.ack(first) is True


def test_a_rewind_to_a_checkpoint_redelivers_the_batches_after_it(transport, trainer):
    trainer.register(registration(commits=True))
    post(transport, group(1), group(2), group(3))
    for _ in range(3):
        trainer.ack(trainer.claim(wait_s=0))
    assert trainer.commit(1).committed == 1

    reborn = RolloutClient(URL, transport=transport)
    reborn.register(registration(commits=True))
    rewound = reborn.rewind(1)
    assert (rewound.replayed, rewound.gone) == (2, 0)
    numbers = []
    for _ in range(2):
        claimed = reborn.claim(wait_s=0)
        numbers.append((claimed.batch_no, tokens_of(claimed)))
        reborn.ack(claimed)
    assert numbers == [(2, [[[2, 7]] * 2]), (3, [[[3, 7]] * 2])]
    assert reborn.commit(3).committed == 2


def test_a_replaced_trainer_gets_an_error_and_does_not_register_again(transport):
    old = RolloutClient(URL, transport=transport)
    old.register(registration())
    new = RolloutClient(URL, transport=transport)
    new.register(registration())
    with pytest.raises(StaleGeneration):
        old.claim(wait_s=0)
    assert new.claim(wait_s=0).blocked_reason


def test_after_a_reset_a_trainer_has_to_register(transport, trainer):
    trainer.register(registration())
    other = RolloutClient(URL, transport=transport)
    other.reset()
    with pytest.raises((NotRegistered, StaleGeneration)):
        trainer.claim(wait_s=0)


def test_the_version_is_announced(trainer):
    trainer.register(registration())
    trainer.announce_version(3)
    assert trainer.status().policy_version == 3


def living(life, **more):
    fields = {"life": life, "host": "node7", "pid": 42, "run_name": "gsm8k"}
    return registration().model_copy(update=fields | more)


def beat(client, life, **details):
    client.heartbeat(
        Heartbeat(role="trainer", name="x", phase="t", details={"life": life, **details})
    )


def test_a_second_trainer_is_refused_with_the_name_of_the_first_which_goes_on(
    transport, trainer, monkeypatch
):
    trainer.register(living("one"))
    beat(trainer, "one")
    post(transport, group())
    monkeypatch.setattr("atroposlib.client.trainer.TAKEN_AFTER_S", 0.0)
    with RolloutClient(URL, transport=transport) as second:
        with pytest.raises(RunTaken, match=r"gsm8k \(host node7, pid 42\).*--take-over"):
            second.register(living("two"))
        assert trainer.ack(trainer.claim(wait_s=0))
        second.register(living("two", take_over=True))
    with pytest.raises(StaleGeneration):
        trainer.claim(wait_s=0)


def test_a_trainer_waits_until_its_predecessor_has_ended(transport, trainer):
    waits = []

    def ended(reason):
        waits.append(reason)
        beat(trainer, "one", ended=1)

    trainer.register(living("one"))
    beat(trainer, "one")
    with RolloutClient(URL, transport=transport, on_wait=ended) as second:
        registered = second.register(living("two", starting_step=3))
    assert (registered.incarnation, registered.starts) == (2, [0, 3])
    assert len(waits) == 1 and "the end of another trainer" in waits[0]


def test_a_checkpoint_that_does_not_fit_registers_nobody(transport, trainer):
    trainer.register(living("one"))
    with RolloutClient(URL, transport=transport) as second:
        with pytest.raises(CannotRewind, match="batch 7 was never formed here"):
            second.register(living("two", take_over=True, holds=7))
    assert trainer.claim(wait_s=0).blocked_reason


def test_versions_are_announced_with_the_life_that_published_them(transport, trainer):
    trainer.register(living("one"))
    trainer.announce_version(5)
    with RolloutClient(URL, transport=transport) as second:
        second.register(living("two", take_over=True, starting_step=4))
        trainer.announce_version(6)  # of a trainer that was replaced
        assert second.status().policy_version == 4
        second.announce_version(6)
        assert second.status().policy_version == 6


def test_a_client_pauses_by_its_timing(transport):
    now, pauses = [0.0], []

    def pause(seconds):
        pauses.append(seconds)
        now[0] += seconds

    timing = Timing(clock=lambda: now[0], sleep=pause, uniform=lambda: 1.0)
    lossy = Lossy(transport, "/register", times=3)
    client = RolloutClient(URL, transport=lossy, timing=timing, on_wait=lambda _: None)
    with client:
        client.register(registration())
    assert pauses == pytest.approx([0.2, 0.4, 0.8])


def test_a_registration_whose_reply_is_lost_is_repeated_as_the_same_one(transport):
    client, lossy = losing(transport, "/register")
    first = client.register(registration())
    assert lossy.left == 0 and first.generation == 1
    assert client.register(registration()).generation == 2  # the next one is another
