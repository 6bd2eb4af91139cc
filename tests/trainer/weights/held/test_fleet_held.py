"""Tests of servers that an evaluation holds: real local servers, publishes that pass them over."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from example_trainer.weights import PUBLISHERS
from example_trainer.weights.fleet import held_count
from tests.trainer.weights.support.fleets import change, distance, expected, fleet, state

EXACT = 1e-4


@pytest.mark.parametrize("name", sorted(PUBLISHERS))
def test_a_held_server_keeps_its_version_while_the_others_go_on_and_then_has_the_current(
    name, publisher_for, policy_for, servers
):
    publisher, announced = publisher_for(name)
    policy, (going, held) = policy_for(name), servers
    publisher.publish(policy, state(1))
    before = held.logprobs()
    assert publisher.fleet.hold(0.5, version=1) == [held.url]
    for version in (2, 3):
        change(policy, version)
        publisher.publish(policy, state(version))
        publisher.look()  # the keeper leaves it alone
        assert going.client.version() == str(version) and held.client.version() == "1"
        assert not held.engine.is_paused and held.logprobs() == before
    reported = publisher.fleet.states()
    assert [(s.url, s.held, s.silent_s) for s in reported] == [
        (going.url, False, None),
        (held.url, True, None),
    ]
    assert publisher.fleet.counts()["servers_held"] == 1 and not publisher.fleet.absent

    publisher.fleet.release([held.url])
    assert publisher.fleet.urls == [going.url]  # not with its old weights
    publisher.look()
    if not publisher.renews:  # a broadcast needs every rank
        change(policy, 4)
        publisher.publish(policy, state(4))
    assert publisher.fleet.urls == [going.url, held.url]
    assert held.client.version() == going.client.version() == str(announced[-1])
    assert distance(held.logprobs(), expected(policy)) < EXACT
    assert "servers_held" not in publisher.fleet.counts()


def test_a_released_server_takes_part_in_the_next_publish(publisher_for, policy_for, servers):
    publisher, _ = publisher_for("disk")
    policy = policy_for("disk")
    publisher.publish(policy, state(1))
    held = publisher.fleet.hold(0.5, version=1)
    change(policy, 2)
    publisher.publish(policy, state(2))
    publisher.fleet.release(held)
    change(policy, 3)
    publisher.publish(policy, state(3))
    assert [server.client.version() for server in servers] == ["3", "3"]


def test_held_servers_are_released_when_no_other_server_is_left(
    model_dir, publisher_for, policy_for, monkeypatch
):
    monkeypatch.setattr("example_trainer.weights.engines.http.GONE_AFTER_S", 0.0)
    monkeypatch.setattr("example_trainer.weights.fleet.POLL_S", 0.0)
    with fleet(model_dir, 2) as mortals:
        publisher, announced = publisher_for("disk", mortals)
        policy, (dying, held) = policy_for("disk"), mortals
        publisher.publish(policy, state(1))
        publisher.fleet.hold(0.5, version=1)
        dying.die()
        publisher.publish(policy, state(2))
        assert announced == [1, 2] and held.client.version() == "2"
        assert list(publisher.fleet.absent) == [dying.url] and not publisher.fleet.held


def test_a_held_directory_stays_until_its_server_has_another(
    publisher_for, policy_for, servers, config
):
    publisher, _ = publisher_for("disk", keep_published=1)
    policy = policy_for("disk")
    publisher.publish(policy, state(1))
    (first,) = config().published.iterdir()
    held = publisher.fleet.hold(0.5, version=1)
    publisher.publish(policy, state(2))
    publisher.publish(policy, state(3))
    assert first.is_dir() and len(list(config().published.iterdir())) == 2
    publisher.fleet.release(held)
    publisher.publish(policy, state(4))
    assert len(list(config().published.iterdir())) == 1


@pytest.mark.parametrize(
    ("present", "share", "count"),
    [
        (8, 0.25, 2),
        (8, 0.3, 2),
        (2, 0.25, 1),
        (3, 0.9, 2),
        (2, 0.99, 1),
        (1, 0.5, 0),
        (0, 0.5, 0),
    ],
)
def test_an_evaluation_holds_its_share_of_the_servers(present, share, count):
    assert held_count(present, share) == count


@given(st.integers(2, 1000), st.floats(0.001, 0.999))
def test_an_evaluation_never_holds_all_servers_and_always_one(present, share):
    assert 1 <= held_count(present, share) < present
