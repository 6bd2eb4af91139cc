"""Publisher through shared memory, for trainer and servers on the same machine.

Main memory: a private file in /dev/shm that servers map read-only and copy. Between
two GPUs of vLLM and the trainer: a buffer on the trainer's GPU, whose CUDA handle the
workers open; it is described in the original's bridge file (``vllm_config_path``).

The buffer is written while servers generate. They read it only on request, paused, and
copy it, so the trainer never writes into weights in use.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import tempfile
import weakref
from base64 import b64encode
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atroposlib.errors import CheckpointError
from atroposlib.utils.models.process_group import gpu_uuid
from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.model.state_dict import TensorSpec, export_weights, layout
from example_trainer.weights.engines import InferenceServer
from example_trainer.weights.publisher import Publisher
from example_trainer.weights.vllm_worker import HANDLE_FIELDS

DTYPE_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
VERSION_CHARS = 20
UNFINISHED = "unfinished"
PREFIX = "atropos-weights-"
ALIGN = 256  # bytes in the GPU buffer; as of a separate allocation
BRIDGE_FILE = "vllm_bridge_config.json"


class SharedWeightsFile:
    """Safetensors file in memory; readers map it between writes. Deleted on close."""

    def __init__(self, tensors: Sequence[TensorSpec]) -> None:
        """Raise CheckpointError if there is not enough memory."""
        sweep()
        ends = list(accumulate((tensor.bytes for tensor in tensors), initial=0))
        header, self._version_at = _header(tensors, ends)
        slots = (slice(len(header) + a, len(header) + b) for a, b in zip(ends, ends[1:]))
        self._slots = {tensor.name: slot for tensor, slot in zip(tensors, slots)}
        name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}.safetensors"
        self.path = memory_directory() / name
        self._bytes = torch.frombuffer(
            _map_file(self.path, len(header) + ends[-1]), dtype=torch.uint8
        )
        self._bytes[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        self.remove = weakref.finalize(self, self.path.unlink, missing_ok=True)

    def write(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace all contents. The file has no version until the last byte is written."""
        self._name(UNFINISHED)
        for name, tensor in tensors:
            plain = tensor.detach().contiguous().flatten()
            self._bytes[self._slots[name]].copy_(plain.view(torch.uint8))
        self._name(str(version))

    def _name(self, version: str) -> None:
        text = bytearray(version.rjust(VERSION_CHARS).encode())
        self._bytes[self._version_at : self._version_at + VERSION_CHARS] = torch.frombuffer(
            text, dtype=torch.uint8
        )


def memory_directory() -> Path:
    """Return the directory of files in memory, or else the temporary directory."""
    shm = Path("/dev/shm")
    return shm if os.access(shm, os.W_OK) else Path(tempfile.gettempdir())


def sweep() -> None:
    """Delete files left by killed trainers of this user."""
    for path in memory_directory().glob(f"{PREFIX}*-*.safetensors"):
        owner = path.name.removeprefix(PREFIX).partition("-")[0]
        try:
            if path.stat().st_uid == os.getuid() and owner.isdigit():
                os.kill(int(owner), 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except OSError:  # already deleted, or the pid now belongs to another user
            continue


def _header(tensors: Sequence[TensorSpec], ends: Sequence[int]) -> tuple[bytes, int]:
    """Return the safetensors header with its length prefix, and the offset of the version."""
    entries: dict[str, object] = {
        "__metadata__": {"format": "pt", "version": UNFINISHED.rjust(VERSION_CHARS)}
    }
    for tensor, start, end in zip(tensors, ends, ends[1:]):
        entries[tensor.name] = {
            "dtype": DTYPE_CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, header.index(UNFINISHED.rjust(VERSION_CHARS).encode())


def _map_file(path: Path, size: int) -> mmap.mmap:
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        # Allocated in full: a write into memory that is missing would kill the process.
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise CheckpointError(
            f"no {size / 2**30:.1f} GiB of shared memory at {path.parent} ({error}); make it"
            " larger (docker: --shm-size), or choose another --weight-publisher"
        ) from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)


class CudaBuffer:
    """GPU buffer of the trainer that vLLM workers on the same machine open by CUDA handle.

    It lives as long as the trainer: workers keep the handle open. It has not been run yet.
    """

    def __init__(
        self, tensors: Sequence[TensorSpec], device: torch.device, path: Path, model: str
    ) -> None:
        self.path = path
        self._model = model
        self._specs = list(tensors)
        sizes = (-(-tensor.bytes // ALIGN) * ALIGN for tensor in tensors)
        *self._starts, size = accumulate(sizes, initial=0)
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
            "device_uuid": gpu_uuid(device),
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


class SharedMemoryPublisher(Publisher):
    """Publishes through memory: the fastest on a single machine, without disk access."""

    _buffer: SharedWeightsFile | CudaBuffer | None = None
    _specs: Sequence[TensorSpec] = ()

    def stage(self, policy: Policy, state: TrainerState) -> Path | None:
        self._specs = self._specs or layout(policy, untie_head=self.needs_untying(policy))
        run_on_rank0(policy.world, lambda: self._make_buffer(policy))
        tensors = export_weights(policy, untie_head=self.needs_untying(policy))
        if self._buffer is None:
            for _ in tensors:  # this rank takes part only in the gathering
                pass
            return None
        self._buffer.write(tensors, state.version)
        return self._buffer.path

    def load(self, engine: InferenceServer, path: str, version: int) -> None:
        engine.load_shared(path, version)

    def close(self) -> None:
        if self._buffer is not None:
            self._buffer.remove()
            self._buffer = None

    def _make_buffer(self, policy: Policy) -> None:
        if self._buffer is not None:
            return
        if policy.device.type == "cuda" and all(e.opens_cuda_memory for e in self.engines):
            configured = self.cfg.vllm_config_path
            path = (
                Path(configured) if configured else self.cfg.published.resolve() / BRIDGE_FILE
            )
            self._buffer = CudaBuffer(self._specs, policy.device, path, self.cfg.model_name)
        else:
            self._buffer = SharedWeightsFile(self._specs)
