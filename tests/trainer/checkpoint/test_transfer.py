"""Shards on their way to rank 0; test_recovery_ranks.py sends them between two processes."""

from __future__ import annotations

from collections import deque

import torch

from example_trainer.checkpoint import transfer
from example_trainer.checkpoint.shards import Shard
from example_trainer.distributed.ranks import Ranks


class Channel:
    """Tensors from one rank to another, in order, as bytes."""

    def __init__(self):
        self.sent = deque()

    def send(self, tensor, rank):
        assert rank == 0
        self.sent.append(tensor.clone())

    def recv(self, tensor, rank):
        assert rank == 1
        tensor.copy_(self.sent.popleft())


def test_shards_of_every_shape_and_type_arrive_as_they_were_sent(monkeypatch):
    channel = Channel()
    monkeypatch.setattr(transfer, "dist", channel)
    own = Shard("weights", "a", (4, 2), (0, 0), torch.ones(2, 2))
    sent = [
        Shard("weights", "a", (4, 2), (2, 0), torch.randn(2, 2)),
        Shard("optimizer", "a/step", (), (), torch.tensor(3)),
        Shard("optimizer", "b", (5,), (0,), torch.randn(5).bfloat16()),
        Shard("optimizer", "c", (0, 3), (0, 0), torch.zeros(0, 3)),
    ]
    assert transfer.send_to_rank0(Ranks(1, 2), [1], sent) == []
    kept = transfer.send_to_rank0(Ranks(0, 2), [1], [own])
    assert kept[0] is own and not channel.sent
    for ours, theirs in zip(kept[1:], sent, strict=True):
        assert (ours.group, ours.name) == (theirs.group, theirs.name)
        assert (ours.shape, ours.offsets) == (theirs.shape, theirs.offsets)
        assert ours.values.dtype == theirs.values.dtype
        assert torch.equal(ours.values, theirs.values)


def test_ranks_that_see_the_disk_keep_their_shards():
    shard = Shard("weights", "a", (1,), (0,), torch.ones(1))
    assert transfer.send_to_rank0(Ranks(1, 2), [], [shard]) == [shard]
