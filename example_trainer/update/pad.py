"""Ragged per-token lists -> (B, T) tensors of one micro-batch; mismatch to the sampler.

Letters: B rows of a micro-batch, T trained tokens of its longest row, K teacher candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from example_trainer.data.packing import MicroBatch
from example_trainer.data.rows import Row, at_trained
from example_trainer.distributed.collectives import gather_objects
from example_trainer.distributed.ranks import Ranks
from example_trainer.model.policy import Scores
from example_trainer.weights.mismatch import Mismatch


def pad_to_tensor(
    microbatch: MicroBatch,
    values_R_T: Sequence[Sequence[float]],
    device: torch.device,
    fill: float = 0.0,
) -> Tensor:
    """(B, T): entry (b, t) belongs to trained token t of the b-th row of the micro-batch."""
    result = torch.full(microbatch.shape, fill)
    for b, i in enumerate(microbatch.row_ids):
        result[b, : len(values_R_T[i])] = torch.tensor(values_R_T[i], dtype=result.dtype)
    return result.to(device)


def pad_teacher(
    microbatch: MicroBatch, rows: Sequence[Row], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Teacher logprobs and whether there is one, both (B, T, K); K of the longest entry."""
    entries = [
        at_trained(rows[i], rows[i].teacher_logprobs or [[] for _ in rows[i].labels])
        for i in microbatch.row_ids
    ]
    width = max((len(found) for row in entries for found in row), default=0)
    logprobs = torch.zeros(*microbatch.shape, width)
    present = torch.zeros(*microbatch.shape, width, dtype=torch.bool)
    for b, row in enumerate(entries):
        for t, found in enumerate(row):
            logprobs[b, t, : len(found)] = torch.tensor(found)
            present[b, t, : len(found)] = True
    return logprobs.to(device), present.to(device)


@torch.no_grad()
def sampled_mismatch(
    scores: Scores, behaviour: Tensor, versions: Tensor, version: int, tolerance: float
) -> Mismatch:
    """Distance to the sampler on tokens that it sampled with the very weights held here."""
    same = scores.mask & (versions == version)
    distance = (scores.logprobs - behaviour)[same].abs()
    if not len(distance):
        return Mismatch()
    return Mismatch(
        tokens=len(distance),
        total=float(distance.sum()),
        max=float(distance.max()),
        # Negated so that a NaN counts as beyond.
        beyond=int((~(distance <= tolerance)).sum()),
    )


def reduce_mismatch(found: Mismatch, world: Ranks) -> Mismatch:
    """The mismatch of all ranks together, the same on each, so that all stop or none."""
    if world.size == 1:
        return found
    of_ranks = gather_objects(world, asdict(found))
    return sum((Mismatch(**one) for one in of_ranks), Mismatch())
