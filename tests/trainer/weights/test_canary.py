"""Canaries of the prefix caches, with a local server that keeps keys and values of prompts."""

from __future__ import annotations

from contextlib import closing

import pytest

from atroposlib.errors import StaleWeights
from example_trainer.weights import verify
from example_trainer.weights.agreement import Agreement
from example_trainer.weights.canary import (
    CANARIES,
    CANARY_TOKENS,
    MAX_PREFIX_TOKENS,
    canary_prefixes,
    check_prefix_caches,
    fill_prefix_caches,
)
from tests.trainer.weights.support.fleets import LocalServer, state

ROWS = [[6, 7, 8, 9, 10, 11] * 5, [6, 12, 13] * 10]
PREFIXES = canary_prefixes(ROWS)


class PrefixCache:
    """A prefix cache in front of the prefill of a local server: a mutant of it if never reset."""

    def __init__(self, server, is_reset):
        self.hits, self._kept, self._is_reset = 0, {}, is_reset
        self._core = server.engine._core
        self._served = self._core.served
        self._core.served = self

    def __getattr__(self, name):
        return getattr(self._served, name)

    def prefill(self, ids, lengths, cache, rows, source):
        logits = self._served.prefill(ids, lengths, cache, rows, source)
        version = self._core.weight_version if self._is_reset else None
        for row, line in zip(rows.tolist(), source.tolist()):
            length = int(lengths[line]) - 1  # an engine computes the last token again
            key = (version, tuple(ids[line, :length].tolist()))
            if key in self._kept:
                self.hits += 1
                for slot, (keys, values) in zip(cache.slots, self._kept[key]):
                    slot.keys[row, :length], slot.values[row, :length] = keys, values
            else:
                self._kept[key] = [
                    (slot.keys[row, :length].clone(), slot.values[row, :length].clone())
                    for slot in cache.slots
                ]
        return logits


@pytest.fixture
def server(model_dir):
    server = LocalServer(model_dir, 20.0)
    with closing(server.client):
        yield server
    server.die()


def publish_and_check(publisher_for, policy_for, server):
    publisher, _ = publisher_for("disk", [server])
    policy = policy_for("disk")
    fill_prefix_caches(policy, publisher.fleet, PREFIXES)
    publisher.publish(policy, state(1))
    return verify.check_published(
        policy, publisher, ROWS, 1, Agreement.of("float32"), PREFIXES
    )


def test_a_prefix_cache_that_is_reset_with_the_weights_agrees(
    publisher_for, policy_for, server
):
    cache = PrefixCache(server, is_reset=True)
    metrics = publish_and_check(publisher_for, policy_for, server)
    assert metrics["prefix_cache_tokens"] > len(PREFIXES)  # a sample may end early
    assert metrics["prefix_cache_mismatch_max"] < 1e-3
    publisher, _ = publisher_for("disk", [server])
    fill_prefix_caches(policy_for("disk"), publisher.fleet, PREFIXES)
    assert cache.hits == len(PREFIXES)  # the same version is answered from the cache


def test_a_stale_prefix_cache_stops_the_publish_and_pauses_the_servers(
    publisher_for, policy_for, server
):
    cache = PrefixCache(server, is_reset=False)
    with pytest.raises(StaleWeights, match="prefixes.*prefix cache was not reset"):
        publish_and_check(publisher_for, policy_for, server)
    assert cache.hits == 2 * len(PREFIXES)  # it was asked twice
    assert server.engine.is_paused


def test_a_given_text_does_not_show_a_stale_prefix_cache(publisher_for, policy_for, server):
    PrefixCache(server, is_reset=False)
    publisher, _ = publisher_for("disk", [server])
    policy = policy_for("disk")
    fill_prefix_caches(policy, publisher.fleet, PREFIXES)
    publisher.publish(policy, state(1))
    metrics = verify.check_published(policy, publisher, ROWS, 1, Agreement.of("float32"))
    assert metrics["publish_mismatch_max"] < 1e-3 and "prefix_cache_tokens" not in metrics


def test_a_server_that_is_gone_is_left_to_the_publish(publisher_for, policy_for, server):
    publisher, _ = publisher_for("disk", [server])
    server.die()
    server.client.http.timeout_s = 0.01  # a lost call is repeated for so long
    policy = policy_for("disk")
    fill_prefix_caches(policy, publisher.fleet, PREFIXES)
    assert not publisher.fleet.absent
    found = check_prefix_caches(policy, publisher.fleet, PREFIXES, 1, Agreement.of("float32"))
    assert found["prefix_cache_tokens"] == 0 and list(publisher.fleet.absent) == [server.url]


def test_a_server_that_restarted_while_it_sampled_samples_once_more(
    publisher_for, policy_for, server, monkeypatch
):
    publisher, _ = publisher_for("disk", [server])
    policy = policy_for("disk")
    publisher.publish(policy, state(1))
    [engine] = publisher.fleet.present
    sample, rounds = engine.sample, []

    def restarted(tokens, count, temperature):
        rounds.append(tokens)
        ids, logprobs = sample(tokens, count, temperature)
        is_first = len(rounds) <= len(PREFIXES)
        return ids, [value - is_first for value in logprobs]

    monkeypatch.setattr(engine, "sample", restarted)
    agreement = Agreement.of("float32")
    metrics = check_prefix_caches(policy, publisher.fleet, PREFIXES, 1, agreement)
    assert metrics["prefix_cache_tokens"] > 0
    assert len(rounds) == 2 * len(PREFIXES)


def test_a_server_of_another_version_has_restarted_and_is_left_out(
    publisher_for, policy_for, server
):
    publisher, _ = publisher_for("disk", [server])
    policy = policy_for("disk")
    publisher.publish(policy, state(1))
    check_prefix_caches(policy, publisher.fleet, PREFIXES, 2, Agreement.of("float32"))
    assert publisher.fleet.present == []


def test_prefixes_leave_room_for_the_sampled_tokens():
    long, short = list(range(5000)), [1, 2, 3]
    assert [len(p) for p in canary_prefixes([long, short])] == [MAX_PREFIX_TOKENS, 1]
    assert len(canary_prefixes([list(range(40))] * 9)) == CANARIES
    assert len(canary_prefixes([list(range(40))])[0]) == 40 - CANARY_TOKENS
