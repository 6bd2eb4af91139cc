from __future__ import annotations

import threading
from contextlib import closing

import pytest

from atroposlib.errors import ConfigError, InferenceError
from example_trainer.model.model_dir import read_state
from example_trainer.weights import make_publisher
from example_trainer.weights.engines import connect_engine
from tests.trainer.weights.support.engine_fakes import vllm_app
from tests.trainer.weights.support.fleets import distance, expected, state

EXACT = 1e-4


def test_an_adapter_that_is_published_by_disk_arrives_merged(
    publisher_for, policy_for, servers
):
    policy = policy_for("lora")
    publisher_for("disk", lora=True)[0].publish(policy, state(1))
    assert distance(servers[0].logprobs(), expected(policy)) < EXACT


def test_a_failed_load_is_tried_once_more(publisher_for, policy_for, servers, monkeypatch):
    publisher, announced = publisher_for("disk")
    load, failures = servers[1].client.load, [InferenceError("not there yet")]

    def late(*args):
        if failures:
            raise failures.pop()
        load(*args)

    monkeypatch.setattr(servers[1].client, "load", late)
    publisher.publish(policy_for("disk"), state(1))
    assert announced == [1]


def test_a_merging_server_needs_no_adapter_name(publisher_for):
    with pytest.raises(ConfigError, match="leave --publish-adapter-name out"):
        publisher_for("lora", lora=True, publish_adapter_name="policy")


# --- directories ----------------------------------------------------------------------


def published(publisher):
    return sorted(read_state(str(one)).version for one in publisher.cfg.published.iterdir())


def test_a_version_that_is_published_again_gets_a_new_directory(publisher_for, policy_for):
    publisher, _ = publisher_for("disk")
    policy = policy_for("disk")
    publisher.publish(policy, state(1))
    (first,) = publisher.cfg.published.iterdir()
    file = (first / "model.safetensors").stat()
    publisher.publish(policy, state(1))
    assert published(publisher) == [1, 1]
    assert (first / "model.safetensors").stat() == file


def test_a_version_is_deleted_after_every_server_has_confirmed_a_later_one(
    publisher_for, policy_for, servers, monkeypatch
):
    publisher, _ = publisher_for("disk", keep_published=1)
    policy = policy_for("disk")
    publisher.publish(policy, state(1))
    asked = []
    for server in servers:
        version = server.client.version

        def noted(version=version):
            asked.append(published(publisher))
            return version()

        monkeypatch.setattr(server.client, "version", noted)
    publisher.publish(policy, state(2))
    assert asked == [[1, 2], [1, 2]] and published(publisher) == [2]


def test_what_earlier_trainers_left_is_deleted_after_a_publish(publisher_for, policy_for):
    publisher, _ = publisher_for("disk")
    folder = publisher.cfg.published
    for name in ("version_9", "version_abcdef_10", ".version_abcdef_11.draft", "other_1"):
        (folder / name).mkdir(parents=True)
    publisher.publish(policy_for("disk"), state(1))
    kept = [one.name for one in folder.iterdir()]
    assert len(kept) == 2 and "other_1" in kept


# --- slow servers ---------------------------------------------------------------------


class Gate:
    """Loads of one server wait until it is open."""

    def __init__(self, client, monkeypatch):
        self.open, self.ended = threading.Event(), threading.Semaphore(0)
        self._load = client.load
        monkeypatch.setattr(client, "load", self)

    def __call__(self, *args):
        assert self.open.wait(600)
        try:
            self._load(*args)
        finally:
            self.ended.release()


def test_a_slow_server_is_left_out_of_publishes_until_it_has_the_current_weights(
    publisher_for, policy_for, servers, monkeypatch
):
    publisher, announced = publisher_for("disk", publish_slow_s=0.01, keep_published=1)
    policy, fleet, slow = policy_for("disk"), publisher.fleet, servers[1]
    gate = Gate(slow.client, monkeypatch)
    publisher.publish(policy, state(1))
    assert fleet.behind == {slow.url} and fleet.counts()["servers_behind"] == 1
    assert [one.url for one in fleet.states() if one.silent_s is not None] == [slow.url]
    publisher.publish(policy, state(2))
    assert announced == [1, 2] and servers[0].engine.weight_version == 2
    assert published(publisher) == [1, 2]  # it may still read the first
    gate.open.set()
    assert gate.ended.acquire(timeout=600)
    assert slow.engine.weight_version == 1 and slow.engine.is_paused
    fleet.slow_s = None
    publisher.look()
    assert slow.engine.weight_version == 2 and not slow.engine.is_paused
    assert not fleet.absent and not fleet.behind
    publisher.publish(policy, state(3))
    assert slow.engine.weight_version == 3 and published(publisher) == [3]


def test_a_server_that_returns_slowly_holds_up_no_publish(
    publisher_for, policy_for, servers, model_dir, monkeypatch
):
    publisher, _ = publisher_for("disk", publish_slow_s=0.01)
    policy, slow = policy_for("disk"), servers[1]
    publisher.publish(policy, state(1))
    slow.engine.update_weights(str(model_dir), 0)  # as after a restart
    gate = Gate(slow.client, monkeypatch)
    publisher.look()
    assert publisher.fleet.renewing == {slow.url}
    publisher.publish(policy, state(2))
    assert publisher.fleet.urls == [servers[0].url]
    gate.open.set()
    assert gate.ended.acquire(timeout=600)
    publisher.fleet.slow_s = None
    while publisher.fleet.absent:
        publisher.look()
    assert slow.engine.weight_version == 2 and not slow.engine.is_paused


def test_earlier_adapters_stay_on_the_server_and_on_the_disk(config, policy_for, serve):
    """Of versions 1 to 6 those that 2 divides, two at most, and never the present one."""
    diary = []
    cfg = config(
        weight_publisher="lora",
        lora=True,
        publish_adapter_name="policy",
        keep_adapters=2,
        keep_adapters_every=2,
        keep_published=1,
    )
    policy, held = policy_for("lora"), []
    wait = {"timeout_s": 10.0, "wait_s": 0.0, "on_wait": lambda what: None}
    engine = connect_engine(serve(vllm_app(diary, lora=True)), "auto", **wait)
    with closing(engine), closing(make_publisher(cfg, [engine], None)) as publisher:
        for version in range(1, 8):
            publisher.publish(policy, state(version))
            loaded = [
                entry["lora_name"]
                for route, entry in diary
                if route == "/v1/load_lora_adapter"
            ]
            gone = [
                entry["lora_name"]
                for route, entry in diary
                if route == "/v1/unload_lora_adapter"
            ]
            held.append([name for name in loaded if "@" in name and name not in gone])
        kept = published(publisher)
    assert held == [
        [],
        [],
        ["policy@2"],
        ["policy@2"],
        ["policy@2", "policy@4"],
        ["policy@2", "policy@4"],
        ["policy@4", "policy@6"],
    ]
    assert kept == [4, 6, 7]


def test_server_that_keeps_no_adapters_ends_the_run_with_a_remedy(publisher_for, policy_for):
    publisher, _ = publisher_for("lora", lora=True)
    publisher.cfg.keep_adapters = 1
    with pytest.raises(ConfigError, match="--keep-versions K"):
        publisher.publish(policy_for("lora"), state(1))
