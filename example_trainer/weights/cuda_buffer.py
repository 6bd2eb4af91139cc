"""GPU buffer of the trainer that vLLM workers on the same machine open by CUDA handle.

The description has the fields of the original's bridge file, with the handles as base64
in JSON; nothing is pickled. In the original the trainer wrote into vLLM's memory while
vLLM read it; here the buffer is the trainer's, and workers copy from it while they are
paused.

Needs a GPU and has not been run.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from example_trainer.weights.export import TensorSpec
from example_trainer.weights.vllm_worker import HANDLE_FIELDS

ALIGN = 256  # bytes; as of a separate allocation


class CudaBuffer:
    """The buffer. It lives as long as the trainer, because workers keep the handle open."""

    def __init__(
        self, tensors: Sequence[TensorSpec], device: torch.device, path: Path, model: str
    ) -> None:
        self.path = path
        self._model = model
        self._specs = list(tensors)
        self._starts: list[int] = []
        size = 0
        for tensor in tensors:
            self._starts.append(size)
            size += -(-tensor.bytes // ALIGN) * ALIGN
        self._bytes = torch.empty(size, dtype=torch.uint8, device=device)
        starts = zip(self._specs, self._starts)
        self._views = {t.name: self._bytes[at : at + t.bytes] for t, at in starts}
        storage: Any = self._bytes.untyped_storage()
        self._handle: tuple[Any, ...] = storage._share_cuda_()

    def write(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace all contents, then write the description of this version."""
        self.path.unlink(missing_ok=True)  # no description until all is written
        for name, tensor in tensors:
            plain = tensor.detach().contiguous().flatten()
            self._views[name].copy_(plain.view(torch.uint8))
        torch.cuda.synchronize(self._bytes.device)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.draft")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(self.describe(version), file)
        os.replace(draft, self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def describe(self, version: int) -> dict[str, Any]:
        """Return the fields of the bridge file: layout and CUDA handle of the buffer."""
        device = self._bytes.device
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        mappings, handles = {}, {}
        for tensor, start in zip(self._specs, self._starts):
            shape = list(tensor.shape)
            mappings[tensor.name] = {
                "vllm_name": tensor.name,
                "shape": shape,
                "dtype": tensor.dtype_name,
                "device": str(device),
            }
            handles[tensor.name] = {
                **handle_fields(self._handle),
                "tensor_storage_offset": start // tensor.dtype.itemsize,
                "shape": shape,
                "stride": list(torch.empty(shape, device="meta").stride()),
                "dtype": tensor.dtype_name,
            }
        return {
            "model": self._model,
            "version": str(version),
            "device_uuid": uuid,
            "tp_degree": 1,
            "dp_shard_degree": 1,
            "param_names": list(handles),
            "param_mappings": mappings,
            "ipc_handles": handles,
            "shared_weights_enabled": True,
            "num_params": len(handles),
            "single_copy_enabled": False,
        }


def handle_fields(handle: tuple[Any, ...]) -> dict[str, Any]:
    """Return the values of ``UntypedStorage._share_cuda_`` under the original's names."""
    values = (b64encode(v).decode() if isinstance(v, bytes) else v for v in handle)
    return dict(zip(HANDLE_FIELDS, values, strict=True))
