from __future__ import annotations

import json

import pytest
import torch

from example_trainer.weights import vllm_worker
from example_trainer.weights.cuda_buffer import handle_fields
from example_trainer.weights.vllm_worker import open_storage


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
