"""Transfer of shards from hosts without the disk of rank 0 to rank 0."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from example_trainer.checkpoint.shards import DTYPE_OF, DTYPES, Shard
from example_trainer.distributed.ranks import Ranks


def send_to_rank0(
    world: Ranks, senders: Sequence[int], shards: Sequence[Shard]
) -> list[Shard]:
    """Return the shards that this rank writes, on rank 0 also the senders'. Collective."""
    kept = [] if world.number in senders else list(shards)
    with world.waiting("the shards of a recovery checkpoint"):
        for sender in senders:
            if world.is_rank0:
                kept += _receive(sender)
            elif world.number == sender:
                _send(shards)
    return kept


def _send(shards: Sequence[Shard]) -> None:
    about = [
        (s.group, s.name, s.shape, s.offsets, list(s.values.shape), DTYPES[s.values.dtype])
        for s in shards
    ]
    payload = torch.frombuffer(bytearray(msgspec.json.encode(about)), dtype=torch.uint8)
    dist.send(torch.tensor(len(payload)), 0)
    dist.send(payload, 0)
    for shard in shards:
        if shard.values.numel():
            dist.send(_as_bytes(shard.values), 0)


def _receive(sender: int) -> list[Shard]:
    length = torch.tensor(0)
    dist.recv(length, sender)
    payload = torch.empty(int(length), dtype=torch.uint8)
    dist.recv(payload, sender)
    shards = []
    for group, name, shape, offsets, part, dtype in msgspec.json.decode(payload.numpy().data):
        values = torch.empty(part, dtype=DTYPE_OF[dtype])
        if values.numel():
            dist.recv(_as_bytes(values), sender)
        shards.append(Shard(group, name, tuple(shape), tuple(offsets), values))
    return shards


def _as_bytes(values: Tensor) -> Tensor:
    """View of the same memory as bytes; gloo lacks some types of tensors."""
    return values.reshape(-1).view(torch.uint8)
