"""One file of weights in memory, rewritten for every version.

It is a safetensors file, so that every reader of those can map it. Its header names the
version that is whole in it; while it is being written it names none.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from atroposlib.errors import CheckpointError
from example_trainer.weights.export import Placed

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


class SharedWeightsFile:
    """For one writer; readers map it while nobody writes. Removed when this object goes."""

    def __init__(self, tensors: Sequence[Placed]) -> None:
        """Raises CheckpointError when the memory for it is not there."""
        sweep()
        header, self._version_at = _header(tensors)
        self._slots: dict[str, slice] = {}
        at = len(header)
        for tensor in tensors:
            self._slots[tensor.name] = slice(at, at + tensor.bytes)
            at += tensor.bytes
        name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}.safetensors"
        self.path = memory_directory() / name
        self._bytes = torch.frombuffer(_mapped(self.path, at), dtype=torch.uint8)
        self._bytes[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        self.remove = weakref.finalize(self, self.path.unlink, missing_ok=True)

    def write(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace all contents. From the first byte to the last the file names no version."""
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
    """Where files live in memory; a temporary directory where there is no such place."""
    shm = Path("/dev/shm")
    return shm if os.access(shm, os.W_OK) else Path(tempfile.gettempdir())


def sweep() -> None:
    """Remove files of this user's trainers that were killed."""
    for path in memory_directory().glob(f"{PREFIX}*-*.safetensors"):
        owner = path.name.removeprefix(PREFIX).partition("-")[0]
        try:
            if path.stat().st_uid == os.getuid() and owner.isdigit():
                os.kill(int(owner), 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except OSError:  # gone meanwhile, or the number is another user's process now
            continue


def _header(tensors: Sequence[Placed]) -> tuple[bytes, int]:
    """The safetensors header, its length in front, and where in it the version stands."""
    entries: dict[str, object] = {
        "__metadata__": {"format": "pt", "version": UNFINISHED.rjust(VERSION_CHARS)}
    }
    at = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": DTYPE_CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.bytes],
        }
        at += tensor.bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, header.index(UNFINISHED.rjust(VERSION_CHARS).encode())


def _mapped(path: Path, size: int) -> mmap.mmap:
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        # Not only promised: a write into memory that is not there would kill the process.
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
