from __future__ import annotations

from types import SimpleNamespace

import httpx
import pytest
import torch

from atroposlib.errors import ConfigError, PublishFailed
from atroposlib.utils.models import process_group
from example_trainer.model.state_dict import layout
from example_trainer.weights.distributed import buckets
from tests.trainer.weights.support.fleets import state


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


def test_invalid_group_address_is_rejected(publisher_for, policy_for):
    publisher, _ = publisher_for("distributed", publish_group_address="here")
    with pytest.raises(ConfigError, match="host:port"):
        publisher.publish(policy_for("distributed"), state(1))


@pytest.mark.parametrize(
    "gpus, backend",
    [(["B", None], "nccl"), (["B", "A"], "gloo"), ([""], "gloo")],
)
def test_nccl_is_used_only_if_each_member_has_a_gpu_of_its_own(
    publisher_for, monkeypatch, gpus, backend
):
    monkeypatch.setattr(process_group, "gpu_uuid", lambda device: "A")
    publisher, _ = publisher_for("distributed")
    publisher.fleet.engines = [SimpleNamespace(gpu=lambda gpu=gpu: gpu) for gpu in gpus]
    assert publisher._backend(torch.device("cuda")) == backend
    assert publisher._backend(torch.device("cpu")) == "gloo"


def test_local_server_on_a_cpu_reports_no_gpu(servers):
    assert servers[0].client.gpu() == ""


def test_buckets_hold_what_fits_and_a_larger_tensor_alone(policy):
    placed = layout(policy, untie_head=False)
    cuts = buckets(placed, 100_000)
    assert [t for cut in cuts for t in cut] == placed
    assert all(len(cut) == 1 or sum(t.bytes for t in cut) <= 100_000 for cut in cuts)
    assert 1 < len(cuts) < len(placed)
    names = {tensor.name for tensor in placed}
    assert "lm_head.weight" not in names and len(names) == len(placed)
