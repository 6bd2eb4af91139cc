"""What the loss needs beside the policy's own logprobs, as (B, T) tensors of one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atroposlib.wire import MASKED_VERSION
from example_trainer.alignment import Mismatch
from example_trainer.data import Row
from example_trainer.model import Scores
from example_trainer.packing import Pass


@dataclass(frozen=True)
class Targets:
    """Entry (b, t) belongs to trained token t of the b-th row of the pass."""

    behaviour: Tensor  # (B, T) logprobs of the sampler
    advantages: Tensor  # (B, T)
    weights: Tensor  # (B, T) 0 where a row has fewer trained tokens
    versions: Tensor  # (B, T)


def targets(
    plan: Pass,
    rows: Sequence[Row],
    advantages_R_T: Sequence[Sequence[float]],
    weights_R: Sequence[float],
    device: torch.device,
) -> Targets:
    """Gather per-row lists into the layout of ``plan``."""
    behaviour, advantages = torch.zeros(plan.shape), torch.zeros(plan.shape)
    weights = torch.zeros(plan.shape)
    versions = torch.full(plan.shape, MASKED_VERSION)
    for b, i in enumerate(plan.row_ids):
        row, trained = rows[i], rows[i].trained
        n = len(trained)
        behaviour[b, :n] = torch.tensor([row.behaviour_logprobs[j] for j in trained])
        advantages[b, :n] = torch.tensor([advantages_R_T[i][j] for j in trained])
        versions[b, :n] = torch.tensor([row.versions[j] for j in trained])
        weights[b, :n] = weights_R[i]
    return Targets(
        behaviour.to(device), advantages.to(device), weights.to(device), versions.to(device)
    )


@torch.no_grad()
def sampled_mismatch(
    scores: Scores, wanted: Targets, version: int, tolerance: float
) -> Mismatch:
    """Distance to the sampler on tokens that it sampled with the very weights held here."""
    same = scores.mask & (wanted.versions == version)
    distance = (scores.logprobs - wanted.behaviour)[same].abs()
    if not len(distance):
        return Mismatch()
    return Mismatch(
        tokens=len(distance),
        total=float(distance.sum()),
        max=float(distance.max()),
        # Written so that a NaN is beyond.
        beyond=int((~(distance <= tolerance)).sum()),
    )


class TokenSums:
    """Sums over trained tokens, collected over passes without waiting for the device."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, metrics: dict[str, Tensor]) -> None:
        for name, value in metrics.items():
            value = value.detach().double()
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def total(self, name: str) -> float:
        return float(self._sums.get(name, 0.0))

    def means(self, tokens: int) -> dict[str, float]:
        return {name: float(value) / max(1, tokens) for name, value in self._sums.items()}
