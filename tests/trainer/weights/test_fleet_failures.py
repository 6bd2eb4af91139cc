"""Tests of every publisher against real local servers: complete weights or a reported failure,
and no sample of a mixture.
"""

from __future__ import annotations

import pytest

from atroposlib.errors import CheckpointError, InferenceError, PublishFailed
from atroposlib.inference.engine.engine import PauseMode
from example_trainer.weights import PUBLISHERS
from tests.trainer.weights.support.fleets import change, distance, expected, fleet, state

EXACT = 1e-4


MOVED = 0.05


@pytest.fixture
def mortals(model_dir, monkeypatch):
    """Two servers of one test, which may be shut down."""
    monkeypatch.setattr("example_trainer.weights.engines.http.RETRIES_S", ())
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


def test_a_server_that_is_gone_before_the_pause_leaves_the_others_generating(
    publisher_for, policy_for, mortals
):
    servers = mortals
    publisher, announced = publisher_for("disk", servers)
    stage = publisher.stage

    def stage_then_die(*args):
        staged = stage(*args)
        servers[1].die()
        return staged

    publisher.stage = stage_then_die
    with pytest.raises(PublishFailed, match="No server was touched") as failure:
        publisher.publish(policy_for("disk"), state(1))
    assert servers[1].url in str(failure.value) and servers[0].url not in str(failure.value)
    assert not servers[0].engine.is_paused and servers[0].engine.weight_version == 0
    assert announced == []


@pytest.mark.parametrize(
    "name",
    [
        "disk",
        "distributed",
        pytest.param("lora", marks=pytest.mark.slow),
        pytest.param("shared_memory", marks=pytest.mark.slow),
    ],
)
def test_server_death_between_pause_and_load_leaves_the_fleet_paused_and_reported(
    name, publisher_for, policy_for, mortals, monkeypatch
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

    def die_and_load(*args):
        dying.die()
        return load(*args)

    monkeypatch.setattr(dying.client, method, die_and_load)
    with pytest.raises(PublishFailed) as failure:
        publisher.publish(policy_for(name), state(1))
    told = str(failure.value)
    held = healthy.engine.weight_version
    assert held == (0 if name == "distributed" else 1)
    assert f"{healthy.url} holds version '{held}'" in told
    assert f"{dying.url} is silent" in told
    assert healthy.engine.is_paused and healthy.engine.resumes_in_s is None
    assert announced == []


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
