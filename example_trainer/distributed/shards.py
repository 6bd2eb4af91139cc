"""One tensor over several ranks: its whole, this rank's part, and how to set it.

A sharded tensor is a DTensor: rank r of n holds the r-th of n chunks of its rows. With one
rank every tensor is a plain one, and whole and part are the same.
"""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded. Collective: every rank calls it."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor; the same memory."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def set_whole(target: Tensor, value: Tensor) -> None:
    """Copy this rank's part of the whole ``value`` into ``target``."""
    if isinstance(target, DTensor):
        (placement,) = target.placements
        if isinstance(placement, Shard):
            mesh = target.device_mesh
            chunks = value.chunk(mesh.size(), placement.dim)
            rank = mesh.get_local_rank()
            # Fewer rows than ranks: the last ranks hold none.
            value = chunks[rank] if rank < len(chunks) else value.narrow(placement.dim, 0, 0)
    local(target).copy_(value)
