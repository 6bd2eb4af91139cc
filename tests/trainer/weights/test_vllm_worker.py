"""Tests of the worker extension of vLLM, to the extent that a CPU can run it."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from atroposlib.utils.models import process_group
from atroposlib.utils.models.process_group import GroupSpec
from example_trainer.model.state_dict import TensorSpec
from example_trainer.weights.shared_memory import SharedWeightsFile
from example_trainer.weights.vllm_worker import WeightWorker


class Head:
    """An output layer that vLLM packs after loading."""

    def __init__(self):
        self.quant_method = self
        self.packed = 0

    def process_weights_after_loading(self, layer):
        self.packed += 1


class Worker(WeightWorker):
    """Stand-in of vLLM's worker with the attributes that the extension uses."""

    device = torch.device("cpu")

    def __init__(self, copy=0, rank=0):
        parallel = SimpleNamespace(
            data_parallel_index=copy, data_parallel_rank=0, world_size=2
        )
        self.vllm_config, self.rank = SimpleNamespace(parallel_config=parallel), rank
        self.model_runner = self
        self.lm_head = Head()
        self.loaded = {}

    def get_model(self):
        return self

    def reload_weights(self, weights_iterator):
        self.loaded = {name: tensor.clone() for name, tensor in weights_iterator}


TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}


PLACED = [TensorSpec(name, t.dtype, tuple(t.shape)) for name, t in TENSORS.items()]


def holds_all(worker):
    same = all(torch.equal(worker.loaded[name], t) for name, t in TENSORS.items())
    return same and worker.loaded.keys() == TENSORS.keys() and worker.lm_head.packed == 1


def test_a_checkpoint_is_loaded_from_all_its_files_and_the_head_packed_again(tmp_path):
    for i, (name, tensor) in enumerate(TENSORS.items()):
        save_file({name: tensor}, tmp_path / f"part-{i}.safetensors")
    worker = Worker()
    assert worker.load_checkpoint(str(tmp_path)) == "2 tensors"
    assert holds_all(worker)
    with pytest.raises(FileNotFoundError):
        worker.load_checkpoint(str(tmp_path / "absent"))


def test_shared_memory_is_loaded_when_it_holds_the_version():
    file, worker = SharedWeightsFile(PLACED), Worker()
    file.write(TENSORS.items(), 7)
    worker.load_shared(str(file.path), "7")
    assert holds_all(worker)
    with pytest.raises(ValueError, match="'7', not '8'"):
        worker.load_shared(str(file.path), "8")
    file.remove()


def test_tensors_are_loaded_as_they_are_broadcast():
    listener = process_group.listen("127.0.0.1", 0)
    group = GroupSpec("127.0.0.1", listener.getsockname()[1], 2, "gloo", "g", 60.0)
    worker = Worker()

    def serve():
        worker.join_weight_group(json.dumps({**asdict(group), "first_rank": 1}))
        told = {"name": "g", "names": list(TENSORS), "dtypes": [p.dtype_name for p in PLACED]}
        shapes = {"shapes": [list(p.shape) for p in PLACED]}
        worker.receive_weights(json.dumps({**told, **shapes}))

    thread = threading.Thread(target=serve)
    thread.start()
    ours = process_group.join_group(process_group.host_store(listener, group), group, 0)
    for tensor in TENSORS.values():
        process_group.broadcast(ours, tensor).wait()
    thread.join(600)
    assert holds_all(worker)
    with pytest.raises(ValueError, match="in group 'g', not 'h'"):
        worker.receive_weights(json.dumps({"name": "h"}))
    worker.leave_weight_group("g")
    assert worker._weight_group is None


def test_every_worker_of_every_data_parallel_copy_joins_as_a_rank_of_its_own(monkeypatch):
    joined = []
    monkeypatch.setattr(process_group, "guest_store", lambda group: None)
    monkeypatch.setattr(
        process_group, "join_group", lambda store, group, rank: joined.append(rank)
    )
    group = GroupSpec("127.0.0.1", 1, 5, "nccl", "g", 20.0)
    for copy in (0, 1):
        for rank in (0, 1):
            spec = json.dumps({**asdict(group), "first_rank": 1})
            Worker(copy, rank).join_weight_group(spec)
    assert joined == [1, 2, 3, 4]


def test_a_worker_copies_a_published_directory_to_its_node(tmp_path):
    published = tmp_path / "published" / "version_a_1"
    published.mkdir(parents=True)
    (published / "config.json").write_bytes(b"{}")
    (published / "model.safetensors").write_bytes(b"weights")
    path, copied_bytes = json.loads(Worker().copy_to_node(str(published)))
    again = json.loads(Worker().copy_to_node(str(published)))
    assert (copied_bytes, again) == (9, [path, 0])
    assert Path(path, "model.safetensors").read_bytes() == b"weights"
