from __future__ import annotations

import json
import os

import pytest
import torch

from atroposlib.errors import InferenceError
from example_trainer.weights import vllm_worker
from example_trainer.weights.shared_memory import PREFIX, handle_fields, memory_directory
from example_trainer.weights.vllm_worker import open_storage
from tests.trainer.weights.support.fleets import state


def test_shared_memory_is_private_and_deleted_with_the_publisher(publisher_for, policy_for):
    publisher, _ = publisher_for("shared_memory")
    publisher.publish(policy_for("shared_memory"), state(1))
    path = publisher._buffer.path
    assert path.stat().st_mode & 0o777 == 0o600
    publisher.publish(policy_for("shared_memory"), state(2))
    assert publisher._buffer.path == path
    publisher.close()
    assert not path.exists()


def test_shared_memory_of_a_killed_trainer_is_deleted(publisher_for, policy_for):
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


def test_a_handle_goes_through_the_bridge_file_and_comes_back(monkeypatch):
    handle = (3, b"\x00memory", 4096, 512, b"counter", 8, b"\xffevent", True)
    fields = json.loads(json.dumps(handle_fields(handle)))
    assert set(fields) == {
        "device_index",
        "ipc_handle_b64",
        "storage_size",
        "storage_offset_orig",
        "ref_counter_handle_b64",
        "ref_counter_offset",
        "event_handle_b64",
        "event_sync_required",
    }
    opened = []
    monkeypatch.setattr(
        torch.UntypedStorage, "_new_shared_cuda", lambda *args: opened.append(args), False
    )
    open_storage(fields, 1)  # the trainer's GPU has another number there
    assert opened == [(1, *handle[1:])]


def test_gpu_invisible_to_the_worker_is_named_in_the_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RuntimeError, match="GPU-1 of the trainer is not visible"):
        vllm_worker._device_index("GPU-1")
