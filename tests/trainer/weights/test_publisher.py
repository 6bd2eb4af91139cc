"""Tests of every publisher against real local servers: complete weights, servers that are lost
and come back, or a reported failure; and no sample of a mixture.
"""

from __future__ import annotations

import pytest

from atroposlib.errors import CheckpointError, InferenceError, PublishFailed
from atroposlib.inference.engine.engine import PauseMode
from example_trainer.weights import PUBLISHERS, verify
from example_trainer.weights.agreement import Agreement
from example_trainer.weights.publisher import Keeper
from tests.trainer.weights.support.fleets import change, distance, expected, fleet, state

EXACT = 1e-4


MOVED = 0.05


@pytest.fixture
def mortals(model_dir, monkeypatch):
    """Two servers of one test, which may be shut down."""
    monkeypatch.setattr("example_trainer.weights.engines.http.GONE_AFTER_S", 0.0)
    with fleet(model_dir, 2) as started:
        yield started


@pytest.mark.parametrize("name", sorted(PUBLISHERS))
def test_after_a_publish_every_server_has_the_new_logprobs_under_the_new_version(
    name, publisher_for, policy_for, servers
):
    publisher, announced = publisher_for(name, publish_bucket_mb=1)
    policy = policy_for(name)
    before = servers[0].logprobs()
    for version, seed in ((1, 1), (2, 2)):
        change(policy, seed)
        publisher.publish(policy, state(version))
        for server in servers:
            assert distance(server.logprobs(), expected(policy)) < EXACT
            assert distance(server.logprobs(), before) > MOVED
            assert server.client.version() == str(version)
            assert not server.engine.is_paused
    assert announced == [1, 2]


def test_a_server_that_is_gone_before_the_pause_is_left_out(
    publisher_for, policy_for, mortals
):
    healthy, dying = mortals
    publisher, announced = publisher_for("disk", mortals)
    stage = publisher.stage

    def stage_then_die(*args):
        staged = stage(*args)
        dying.die()
        return staged

    publisher.stage = stage_then_die
    publisher.publish(policy_for("disk"), state(1))
    assert list(publisher.fleet.absent) == [dying.url]
    assert not healthy.engine.is_paused and healthy.engine.weight_version == 1
    assert announced == [1]


@pytest.mark.parametrize(
    "name",
    [
        "disk",
        "distributed",
        pytest.param("lora", marks=pytest.mark.slow),
        pytest.param("shared_memory", marks=pytest.mark.slow),
    ],
)
def test_a_server_that_dies_between_pause_and_load_is_left_out(
    name, mortals, publisher_for, policy_for, monkeypatch
):
    method = {
        "disk": "load",
        "lora": "load_adapter",
        "distributed": "receive",
        "shared_memory": "load_shared",
    }[name]
    publisher, announced = publisher_for(name, mortals)
    healthy, dying = mortals
    load = getattr(dying.client, method)

    def die_and_load(*args, **more):
        dying.die()
        return load(*args, **more)

    monkeypatch.setattr(dying.client, method, die_and_load)
    policy = policy_for(name)
    publisher.publish(policy, state(1))
    assert list(publisher.fleet.absent) == [dying.url]
    assert not healthy.engine.is_paused and healthy.engine.weight_version == 1
    assert distance(healthy.logprobs(), expected(policy)) < EXACT
    assert announced == [1]


@pytest.mark.parametrize(
    "name",
    ["disk", "shared_memory", pytest.param("lora", marks=pytest.mark.slow)],
)
def test_a_server_that_restarted_gets_the_current_weights(
    name, publisher_for, policy_for, servers, model_dir
):
    publisher, _ = publisher_for(name)
    policy = policy_for(name)
    publisher.publish(policy, state(1))
    servers[1].engine.update_weights(str(model_dir), 0)  # as the same command starts it
    publisher.look()
    assert servers[1].engine.weight_version == 1 and not servers[1].engine.is_paused
    assert distance(servers[1].logprobs(), expected(policy)) < EXACT
    assert not publisher.fleet.absent and publisher.fleet.rejoined == 1


def test_a_server_that_restarted_waits_for_the_next_broadcast(
    publisher_for, policy_for, servers, model_dir
):
    publisher, announced = publisher_for("distributed")
    policy = policy_for("distributed")
    publisher.publish(policy, state(1))
    servers[1].engine.update_weights(str(model_dir), 0)
    publisher.look()
    assert servers[1].engine.is_paused and list(publisher.fleet.absent) == [servers[1].url]
    publisher.publish(policy, state(2))
    assert {server.engine.weight_version for server in servers} == {2}
    assert not any(server.engine.is_paused for server in servers)
    assert announced == [1, 2] and not publisher.fleet.absent


def test_a_server_that_restarts_between_load_and_verification_is_loaded_again(
    publisher_for, policy_for, servers, model_dir, monkeypatch
):
    publisher, announced = publisher_for("disk")
    load, restarts = servers[1].client.load, [1]

    def load_and_restart(*args, **more):
        load(*args, **more)
        if restarts:
            restarts.pop()
            servers[1].engine.update_weights(str(model_dir), 0)

    monkeypatch.setattr(servers[1].client, "load", load_and_restart)
    publisher.publish(policy_for("disk"), state(1))
    assert servers[1].engine.weight_version == 1 and announced == [1]


def test_a_server_that_restarted_before_the_check_is_left_out_and_no_mismatch(
    publisher_for, policy_for, servers, model_dir
):
    publisher, _ = publisher_for("disk")
    policy = policy_for("disk")
    publisher.publish(policy, state(1))
    servers[1].engine.update_weights(str(model_dir), 0)
    found = verify.check_published(policy, publisher, [[6, 7, 8]], 1, Agreement.of("float32"))
    assert found["publish_mismatch_max"] < EXACT
    assert list(publisher.fleet.absent) == [servers[1].url]


def test_the_run_ends_when_no_server_is_left_for_the_bound(
    publisher_for, policy_for, mortals, monkeypatch
):
    monkeypatch.setattr("example_trainer.weights.fleet.POLL_S", 0.0)
    publisher, announced = publisher_for("disk", mortals, server_timeout_s=0.01)
    waits = []
    publisher.fleet.on_wait = waits.append
    for server in mortals:
        server.die()
    with pytest.raises(PublishFailed, match="none of .* answers; .* of at most 0 s"):
        publisher.publish(policy_for("disk"), state(1))
    assert announced == []


def test_a_keeper_raises_what_ended_it_in_the_loop(publisher_for, monkeypatch):
    monkeypatch.setattr("example_trainer.weights.publisher.POLL_S", 0.0)
    publisher, _ = publisher_for("disk")

    def look():
        raise PublishFailed("no server is left")

    monkeypatch.setattr(publisher, "look", look)
    with Keeper(publisher) as keeper:
        keeper._thread.join(600)
        with pytest.raises(PublishFailed, match="no server is left"):
            keeper.check()


def test_failed_staging_pauses_no_server(publisher_for, policy_for, servers, tmp_path):
    blocked = tmp_path / "a-file"
    blocked.touch()
    publisher, _ = publisher_for("disk", publish_dir=str(blocked / "below"))
    with pytest.raises(CheckpointError):
        publisher.publish(policy_for("disk"), state(1))
    assert not any(server.engine.is_paused for server in servers)


def test_failed_resume_of_one_server_resumes_the_others(
    publisher_for, policy_for, servers, monkeypatch
):
    publisher, announced = publisher_for("disk")

    def cannot():
        raise InferenceError("no")

    monkeypatch.setattr(servers[1].client, "resume", cannot)
    with pytest.raises(PublishFailed, match="the others generate"):
        publisher.publish(policy_for("disk"), state(1))
    assert not servers[0].engine.is_paused and servers[1].engine.is_paused


def test_servers_resume_by_timeout_after_a_trainer_death_during_pause(
    publisher_for, policy_for, servers, monkeypatch
):
    publisher, _ = publisher_for("disk")
    publisher.fleet._watchdog_s = 0.2

    def die(*args):
        if args:  # the first pause bounds itself, the second would lift the bound
            return servers[1].engine.pause(PauseMode.WAIT, 5.0, *args)
        raise KeyboardInterrupt

    for server in servers:
        monkeypatch.setattr(server.client, "pause", die)
    with pytest.raises(KeyboardInterrupt):
        publisher.publish(policy_for("disk"), state(1))
    assert servers[1].client.sample([6, 7], 1, 1.0)[0]  # waits until the pause is over
    assert servers[1].engine.counters.forgotten_pauses == 1


def test_every_published_tensor_is_logged_if_configured(publisher_for, policy_for, caplog):
    caplog.set_level("INFO")
    publisher, _ = publisher_for("disk", debug_loading=True)
    publisher.publish(policy_for("disk"), state(1))
    assert "publishing model.norm.weight (128,)" in caplog.text
