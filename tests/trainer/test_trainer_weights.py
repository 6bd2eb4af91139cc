"""Every publisher against the real local server: weights arrive whole, or it is said who
holds what, and nobody samples a mixture."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, closing

import httpx
import pytest

from atroposlib.errors import CheckpointError, ConfigError, InferenceError, PublishFailed
from atroposlib.inference.engine.engine import PauseMode
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import loading
from example_trainer.weights import PUBLISHERS, make_publisher
from example_trainer.weights.distributed import buckets
from example_trainer.weights.engines import process_group
from example_trainer.weights.export import TensorSpec, layout
from example_trainer.weights.shared_memory import PREFIX, memory_directory
from tests.trainer.fleets import change, distance, expected, fleet, state

EXACT = 1e-4
MOVED = 0.05


@pytest.fixture(scope="module")
def lasting(model_dir):
    with fleet(model_dir, 2) as started:
        yield started


@pytest.fixture
def servers(lasting, model_dir):
    """Two servers as they were started."""
    for server in lasting:
        server.engine.update_weights(str(model_dir), 0)
        server.engine.resume()
    return lasting


@pytest.fixture
def mortals(model_dir, monkeypatch):
    """Two servers of this test alone, which may die."""
    monkeypatch.setattr("example_trainer.weights.engines.http.RETRIES_S", ())
    with fleet(model_dir, 2) as started:
        yield started


@pytest.fixture
def publisher_for(config, lasting):
    """A publisher to both servers and what it announced."""
    with ExitStack() as stack:

        def make(name, servers=lasting, **settings):
            announced = []
            cfg = config(weight_publisher=name, publish_timeout_s=20, **settings)
            clients = [server.client for server in servers]
            publisher = stack.enter_context(
                closing(make_publisher(cfg, clients, announced.append))
            )
            return publisher, announced

        yield make


@pytest.fixture
def policy_for(config):
    def make(name):
        cfg = config(weight_publisher=name, lora=name == "lora")
        policy = loading.load(cfg, Ranks.single())
        change(policy)
        return policy

    return make


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


def test_an_adapter_that_is_published_by_disk_arrives_merged(
    publisher_for, policy_for, servers
):
    policy = policy_for("lora")
    publisher_for("disk", lora=True)[0].publish(policy, state(1))
    assert distance(servers[0].logprobs(), expected(policy)) < EXACT


# --- a server fails -----------------------------------------------------------------


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
def test_a_server_that_dies_between_pause_and_load_leaves_a_paused_fleet_that_names_itself(
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


def test_a_server_that_refuses_a_broadcast_ends_it_at_once(publisher_for, policy_for, servers):
    publisher, _ = publisher_for("distributed")
    policy = policy_for("distributed")
    publisher.publish(policy, state(1))
    httpx.post(
        f"{servers[1].url}/destroy_weights_update_group",
        json={"group_name": publisher._spec.name},
    )
    with pytest.raises(PublishFailed, match="not in a group"):
        publisher.publish(policy, state(2))
    assert servers[0].engine.is_paused and servers[0].engine.weight_version == 1
    publisher.publish(policy, state(3))  # in a new group
    assert {server.engine.weight_version for server in servers} == {3}


def test_what_cannot_be_staged_pauses_nobody(publisher_for, policy_for, servers, tmp_path):
    blocked = tmp_path / "a-file"
    blocked.touch()
    publisher, _ = publisher_for("disk", publish_dir=str(blocked / "below"))
    with pytest.raises(CheckpointError):
        publisher.publish(policy_for("disk"), state(1))
    assert not any(server.engine.is_paused for server in servers)


def test_a_fleet_that_holds_the_version_is_resumed_where_it_can_be(
    publisher_for, policy_for, servers, monkeypatch
):
    publisher, announced = publisher_for("disk")

    def cannot():
        raise InferenceError("no")

    monkeypatch.setattr(servers[1].client, "resume", cannot)
    with pytest.raises(PublishFailed, match="the others generate"):
        publisher.publish(policy_for("disk"), state(1))
    assert not servers[0].engine.is_paused and servers[1].engine.is_paused


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


def test_a_trainer_that_dies_while_it_pauses_leaves_servers_that_go_on_by_themselves(
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


# --- what is refused before anything runs --------------------------------------------


def test_a_merging_server_needs_no_adapter_name(publisher_for):
    with pytest.raises(ConfigError, match="leave --publish-adapter-name out"):
        publisher_for("lora", lora=True, publish_adapter_name="policy")


def test_an_address_that_is_none_is_refused(publisher_for, policy_for):
    publisher, _ = publisher_for("distributed", publish_group_address="here")
    with pytest.raises(ConfigError, match="host:port"):
        publisher.publish(policy_for("distributed"), state(1))


def test_every_tensor_is_listed_when_asked_for(publisher_for, policy_for, capsys):
    publisher, _ = publisher_for("disk", debug_loading=True)
    publisher.publish(policy_for("disk"), state(1))
    assert "publishing model.norm.weight (128,)" in capsys.readouterr().out


# --- the parts -----------------------------------------------------------------------


def test_shared_memory_is_private_and_goes_with_the_publisher(publisher_for, policy_for):
    publisher, _ = publisher_for("shared_memory")
    publisher.publish(policy_for("shared_memory"), state(1))
    path = publisher._buffer.path
    assert path.stat().st_mode & 0o777 == 0o600
    publisher.publish(policy_for("shared_memory"), state(2))
    assert publisher._buffer.path == path
    publisher.close()
    assert not path.exists()


def test_memory_of_a_trainer_that_was_killed_is_swept(publisher_for, policy_for):
    dead = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(dead, 0)
    left = memory_directory() / f"{PREFIX}{dead}-0.safetensors"
    left.touch()
    publisher, _ = publisher_for("shared_memory")
    publisher.publish(policy_for("shared_memory"), state(1))
    assert not left.exists()


def test_a_shared_file_that_others_can_reach_or_of_another_version_is_refused(
    publisher_for, policy_for, servers
):
    publisher, _ = publisher_for("shared_memory")
    policy = policy_for("shared_memory")
    publisher.publish(policy, state(1))
    path, client = publisher._buffer.path, servers[0].client
    with pytest.raises(InferenceError, match="not version 2"):
        client.load_shared(str(path), 2)
    path.chmod(0o644)
    with pytest.raises(InferenceError, match="nobody else can reach"):
        client.load_shared(str(path), 1)
    publisher._buffer._name("unfinished")
    path.chmod(0o600)
    with pytest.raises(InferenceError, match="'unfinished'"):
        client.load_shared(str(path), 1)


def test_buckets_hold_what_fits_and_a_larger_tensor_alone(policy):
    placed = layout(policy, untie_head=False)
    cuts = buckets(placed, 100_000)
    assert [t for cut in cuts for t in cut] == placed
    assert all(len(cut) == 1 or sum(t.bytes for t in cut) <= 100_000 for cut in cuts)
    assert 1 < len(cuts) < len(placed)
    names = {tensor.name for tensor in placed}
    assert "lm_head.weight" not in names and len(names) == len(placed)


def test_a_tied_head_goes_out_as_its_own_tensor_where_it_must(policy):
    assert "lm_head.weight" in {t.name for t in layout(policy, untie_head=True)}


def test_a_group_made_by_torch_itself_is_the_same_group():
    """SGLang's end is made by torch's own helper, with these prefixes."""
    import torch
    from torch.distributed import PrefixStore
    from torch.distributed.distributed_c10d import _new_process_group_helper

    listener = process_group.listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    group = process_group.GroupSpec("127.0.0.1", port, 2, "gloo", "weights", 20.0)
    received = torch.zeros(3)

    def other_end():
        store = PrefixStore(group.name, process_group.guest_store(group))
        there, _ = _new_process_group_helper(
            2, 1, [], "gloo", store, group_name=group.name, timeout=process_group.bound(group)
        )
        there.broadcast(received, 0).wait()

    thread = threading.Thread(target=other_end)
    thread.start()
    ours = process_group.join(process_group.host_store(listener, group), group, 0)
    process_group.broadcast(ours, torch.tensor([1.0, 2.0, 3.0])).wait()
    thread.join(20)
    assert received.tolist() == [1.0, 2.0, 3.0]


def test_bytes_of_a_layout_are_those_of_its_tensors():
    import torch

    assert TensorSpec("w", torch.bfloat16, (3, 5)).bytes == 30
