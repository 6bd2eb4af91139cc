"""Collectives of the ranks: run on rank 0, gather objects, gather and set sharded tensors.

Only rank 0 calls other processes and writes files. Every rank gets its result or its error,
because a rank that went on alone would wait for all ranks in its next collective operation.

A sharded tensor is a DTensor: rank r of n holds the r-th of n chunks of its rows. With a
single rank every tensor is plain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from atroposlib.errors import AtroposError
from example_trainer.distributed.ranks import Ranks
from example_trainer.state import Stopped

T = TypeVar("T")


class Sliceable(Protocol):
    """A whole tensor in memory or in files; ``[()]`` is all of it."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __getitem__(self, slices: Any, /) -> Tensor: ...


def run_on_rank0(world: Ranks, action: Callable[[], T]) -> T:
    """Run ``action`` on rank 0 and return its result on every rank. JSON values only.

    Raises:
        AtroposError, Stopped: raised by ``action``; on the other ranks with its message.
    """
    if world.alone:
        return action()
    outcome: dict[str, Any] = {"value": None, "error": None, "stopped": None}
    if world.is_rank0:
        try:
            outcome["value"] = action()
        except AtroposError as error:
            world.share({**outcome, "error": f"{type(error).__name__}: {error}"})
            raise
        except Stopped as stopped:
            world.share({**outcome, "stopped": str(stopped)})
            raise
    outcome = world.share(outcome)
    if outcome["stopped"] is not None:
        raise Stopped(outcome["stopped"])
    if outcome["error"] is not None:
        raise AtroposError(f"rank 0 gave up: {outcome['error']}")
    value: T = outcome["value"]
    return value


def gather_objects(world: Ranks, value: Any) -> list[Any]:
    """The JSON values of all ranks, in their order, on every rank."""
    if world.size == 1:
        return [value]
    own = msgspec.msgpack.encode(value)
    sizes = torch.zeros(world.size, dtype=torch.int64)
    sizes[world.rank] = len(own)
    longest = int(world.sum_(sizes).max())
    table = torch.zeros(world.size, longest, dtype=torch.int32)
    table[world.rank, : len(own)] = torch.tensor(list(own), dtype=torch.int32)
    rows = world.sum_(table).tolist()
    return [
        msgspec.msgpack.decode(bytes(row[:size])) for row, size in zip(rows, sizes.tolist())
    ]


def gather_flags(world: Ranks, flag: bool) -> list[bool]:
    """The flags of all processes, in the order of their numbers, on every rank."""
    flags = torch.zeros(world.count, dtype=torch.int32)
    flags[world.number] = int(flag)
    return [bool(value) for value in world.sum_(world.sum_of_parts_(flags)).tolist()]


# --- sharded tensors --------------------------------------------------------------------


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded. Collective."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def local_shard(tensor: Tensor) -> Tensor:
    """The part of a tensor on this rank; the same memory."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def set_full_tensor(target: Tensor, value: Any) -> None:
    """Copy this rank's part of the whole ``value``, a tensor or a slice of a file, into ``target``."""
    local_shard(target).copy_(value[local_slices(target)])


def split_over(tensor: Tensor, dim: str) -> bool:
    """Whether ranks along this dimension of the mesh hold different parts of a tensor."""
    if not isinstance(tensor, DTensor):
        return False
    names = tensor.device_mesh.mesh_dim_names or ()
    return dim in names and hasattr(tensor.placements[names.index(dim)], "dim")


def holds_first_copy(tensor: Tensor, world: Ranks) -> bool:
    """Whether this rank writes its part: of equal parts the first rank's is written."""
    if not isinstance(tensor, DTensor):
        return world.is_rank0
    if world.tensor_rank and not split_over(tensor, "tensor"):
        return False
    mesh = tensor.device_mesh
    return all(
        hasattr(placement, "dim") or mesh.get_local_rank(i) == 0
        for i, placement in enumerate(tensor.placements)
    )


def local_slices(tensor: Tensor) -> tuple[slice, ...]:
    """Slices that this rank holds; empty on the last ranks if rows are fewer than ranks."""
    bounds = [(0, size) for size in tensor.shape]
    if isinstance(tensor, DTensor):
        mesh = tensor.device_mesh
        # FSDP, the first dimension, splits what tensor parallelism left of a matrix.
        for i in reversed(range(mesh.ndim)):
            dim = getattr(tensor.placements[i], "dim", None)
            if dim is not None:
                start, end = bounds[dim]
                chunk = -(-(end - start) // mesh.size(i))
                start = min(start + chunk * mesh.get_local_rank(i), end)
                bounds[dim] = start, min(start + chunk, end)
    return tuple(slice(*bound) for bound in bounds)
