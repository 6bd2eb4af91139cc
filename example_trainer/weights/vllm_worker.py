"""Worker extension of vLLM: the methods that the trainer calls in a vLLM worker.

    VLLM_SERVER_DEV_MODE=1 PYTHONPATH=<this repository> vllm serve MODEL \\
        --worker-extension-cls example_trainer.weights.vllm_worker.WeightWorker

The trainer calls the methods through /collective_rpc, while generation is paused. Weights
go through vLLM's own in-place reload, which cuts weights for tensor parallelism and packs
these again where a kernel needs packed weights. Arguments are strings: the route passes
nothing else. Imports nothing of the trainer, as this runs in vLLM's environment.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atroposlib.utils.models import node_copy, process_group
from atroposlib.utils.models.process_group import GroupSpec
from atroposlib.utils.models.weight_folders import require_weight_folder

NAME = "atropos-weight-worker"

# The original's names for the values of ``UntypedStorage._share_cuda_``, in their order.
HANDLE_FIELDS = (
    "device_index",
    "ipc_handle_b64",
    "storage_size",
    "storage_offset_orig",
    "ref_counter_handle_b64",
    "ref_counter_offset",
    "event_handle_b64",
    "event_sync_required",
)

Weights = Iterable[tuple[str, Tensor]]


class WeightWorker:
    """Methods mixed into vLLM's worker, which has the attributes declared here."""

    model_runner: Any
    device: torch.device
    rank: int  # number among the workers of a data-parallel copy
    vllm_config: Any
    _weight_group: tuple[GroupSpec, Any] | None = None

    def weight_worker(self) -> str:
        """Report that this class is present."""
        return NAME

    def load_checkpoint(self, path: str) -> str:
        """Load the safetensors files of a model directory."""
        require_weight_folder(path)
        files = sorted(Path(path).glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{path} has no .safetensors file")
        return self._reload(weight for file in files for weight in _of_file(file))

    def copy_to_node(self, path: str) -> str:
        """Copy a published directory to this node; JSON of its path and the bytes copied."""
        return json.dumps(node_copy.copy_once(path))

    def load_shared(self, path: str, version: str) -> str:
        """Copy weights from shared memory: a safetensors file, or CUDA handles in JSON."""
        if not path.endswith(".json"):
            return self._reload(_of_file(Path(path), version))
        described = json.loads(Path(path).read_text(encoding="utf-8"))
        if described["version"] != version:
            raise ValueError(f"{path} holds {described['version']!r}, not {version!r}")
        text = self._reload(_of_cuda(described))
        torch.cuda.synchronize()  # afterwards the trainer may overwrite the buffer
        return text

    def join_weight_group(self, spec: str) -> str:
        """Join a group with the trainer; the group of an earlier trainer is left."""
        fields = json.loads(spec)
        first_rank = fields.pop("first_rank")
        self._leave()
        group = GroupSpec(**fields)
        # Not data_parallel_rank: vLLM sets that to 0 for dense models.
        parallel = self.vllm_config.parallel_config
        copy = getattr(parallel, "data_parallel_index", parallel.data_parallel_rank)
        rank = first_rank + copy * parallel.world_size + self.rank
        entered = process_group.join_group(process_group.guest_store(group), group, rank)
        self._weight_group = group, entered
        return group.name

    def receive_weights(self, spec: str) -> str:
        """Load tensors as they arrive; each is freed once its layer is loaded."""
        request = json.loads(spec)
        if self._weight_group is None or self._weight_group[0].name != request["name"]:
            held = self._weight_group[0].name if self._weight_group else None
            raise ValueError(f"this worker is in group {held!r}, not {request['name']!r}")
        group, members = self._weight_group
        where = self.device if group.backend == "nccl" else torch.device("cpu")

        def receive() -> Iterator[tuple[str, Tensor]]:
            for key, dtype, shape in zip(
                request["names"], request["dtypes"], request["shapes"]
            ):
                tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=where)
                process_group.wait(process_group.broadcast(members, tensor), group)
                yield key, tensor

        return self._reload(receive())

    def leave_weight_group(self, name: str) -> str:
        if self._weight_group is not None and self._weight_group[0].name == name:
            self._leave()
        return name

    def _leave(self) -> None:
        entered, self._weight_group = self._weight_group, None
        if entered is not None:
            entered[1].abort()

    def _reload(self, weights: Weights) -> str:
        seen: list[str] = []

        def count() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in weights:
                seen.append(name)
                yield name, tensor

        self.model_runner.reload_weights(weights_iterator=count())
        self._refresh_tied_head()
        return f"{len(seen)} tensors"

    def _refresh_tied_head(self) -> None:
        """Refresh a head tied to the embedding: it has no tensor, so no reload packs it."""
        head = getattr(self.model_runner.get_model(), "lm_head", None)
        method = getattr(head, "quant_method", None)
        if method is not None and hasattr(method, "process_weights_after_loading"):
            method.process_weights_after_loading(head)


def _of_file(path: Path, version: str | None = None) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as reader:
        held = (reader.metadata() or {}).get("version", "no version").strip()
        if version is not None and held != version:
            raise ValueError(f"{path} holds {held!r}, not {version!r}")
        for name in reader.keys():
            yield name, reader.get_tensor(name)


def _of_cuda(described: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Return tensors in the trainer's GPU memory. All lie in an allocation, opened once."""
    index = _device_index(described["device_uuid"])
    storage: Any = None
    for name in described["param_names"]:
        fields = described["ipc_handles"][name]
        if storage is None:
            storage = open_storage(fields, index)
        empty = torch.empty(0, dtype=getattr(torch, fields["dtype"]), device=f"cuda:{index}")
        yield (
            name,
            empty.set_(
                storage, fields["tensor_storage_offset"], fields["shape"], fields["stride"]
            ),
        )


def open_storage(fields: dict[str, Any], device_index: int) -> Any:
    """Open the trainer's allocation in this process."""
    storages: Any = torch.UntypedStorage
    values = [
        base64.b64decode(fields[name]) if name.endswith("_b64") else fields[name]
        for name in HANDLE_FIELDS[1:]  # the number of the GPU may differ here
    ]
    return storages._new_shared_cuda(device_index, *values)


def _device_index(uuid: str) -> int:
    """Return this process's index of the trainer's GPU; the numbering may differ."""
    for index in range(torch.cuda.device_count()):
        if process_group.gpu_uuid(torch.device("cuda", index)) == uuid:
            return index
    raise RuntimeError(
        f"GPU {uuid} of the trainer is not visible to this worker: name it in its"
        " CUDA_VISIBLE_DEVICES, or publish by disk"
    )
