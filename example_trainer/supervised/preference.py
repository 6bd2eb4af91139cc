"""Pairwise losses: DPO, IPO and Bradley-Terry. Not in the registry of the RL losses.

    margin  M = log pi/pi_ref (better) - log pi/pi_ref (worse)

    DPO   -(1 - s) log sigmoid(beta M) - s log sigmoid(-beta M)     s label smoothing
    IPO   (M' - 1 / (2 beta))^2                                    M' of means per token
    Bradley-Terry   -log sigmoid(r_better - r_worse)               r of a reward model

DPO: Rafailov et al. 2023, arXiv 2305.18290, eq. 7, smoothed as in its follow-up cDPO. IPO:
Azar et al. 2023, arXiv 2310.12036, eq. 17, whose log ratios we take per token, or else long
answers could only fit the target by pairs that differ by next to nothing in each token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from example_trainer.data.packing import MicroBatch
from example_trainer.data.rows import Row
from example_trainer.model.policy import PackedModel
from example_trainer.supervised.corpus import Example, flat


def margins(better: Tensor, worse: Tensor, ref_better: Tensor, ref_worse: Tensor) -> Tensor:
    """(P,) from log probabilities of whole answers, or from means per token, all (P,)."""
    return (better - ref_better) - (worse - ref_worse)


def dpo(margins_P: Tensor, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """(P,) losses; at a margin of 0 each is log 2, with gradient -beta (1 - 2 s) / 2."""
    right, wrong = logsigmoid(beta * margins_P), logsigmoid(-beta * margins_P)
    return -(1.0 - label_smoothing) * right - label_smoothing * wrong


def ipo(mean_margins_P: Tensor, beta: float) -> Tensor:
    """(P,) losses; 0 where the margin per token is 1 / (2 beta)."""
    return (mean_margins_P - 1.0 / (2.0 * beta)) ** 2


def bradley_terry(better: Tensor, worse: Tensor) -> Tensor:
    """(P,) losses of rewards, (P,) each (Bradley and Terry 1952)."""
    return -logsigmoid(better - worse)


@torch.no_grad()
def accuracy(margins_P: Tensor) -> Tensor:
    """Count the correctly ordered pairs; a tie counts half."""
    return (margins_P > 0).double().sum() + (margins_P == 0).double().sum() / 2


RowLoss = Callable[[Tensor], Tensor]  # (R,) float64 sums -> the loss, a number


@dataclass(frozen=True)
class RowSums:
    """Differentiable sums over each row's trained tokens of the values of ``score``."""

    model: PackedModel
    score: Callable[[MicroBatch], Tensor]  # -> (B, T), 0 where a row has fewer

    @torch.no_grad()
    def of(self, rows: Sequence[Row]) -> Tensor:
        """Compute the sums, (R,), without a gradient, on the CPU. Collective."""
        sums = torch.zeros(len(rows), dtype=torch.float64)
        for microbatch in self.model.plan_share(rows):
            sums += self._sums(microbatch, len(rows))
        return self.model.world.sum_(sums)

    def backward(self, rows: Sequence[Row], loss_of: RowLoss) -> Tensor:
        """Add the gradient of ``loss_of(sums)`` to the parameters; return the sums. Collective."""
        mine = self.model.plan_share(rows)
        if self.model.world.size == 1 and len(mine) == 1:
            sums = self._sums(mine[0], len(rows))
            torch.autograd.backward(loss_of(sums))
            return sums.detach()
        sums = self.of(rows)
        leaf = sums.clone().requires_grad_()
        (weights,) = torch.autograd.grad(loss_of(leaf), leaf)
        for microbatch in mine:
            torch.autograd.backward(self._sums(microbatch, len(rows)) @ weights)
        return sums

    def _sums(self, microbatch: MicroBatch, count: int) -> Tensor:
        numbers = self.score(microbatch).double().sum(1).cpu()  # (B,)
        places = torch.tensor(microbatch.row_ids, dtype=torch.long)
        return numbers.new_zeros(count).index_add(0, places, numbers)


class PairObjective(ABC):
    """A loss of pairs, as a mean over the pairs of a step."""

    sums: RowSums
    summed: str  # name of the sums in the metrics

    def rows(self, examples: Sequence[Example]) -> list[Row]:
        """The rows whose sums are compared: better, worse, better, worse ..."""
        return flat(examples)

    @abstractmethod
    def margins(self, rows: Sequence[Row], sums_R: Tensor) -> Tensor:
        """(P,) how much better the better row is, not scaled."""

    @abstractmethod
    def losses(self, rows: Sequence[Row], sums_R: Tensor) -> Tensor:
        """(P,) losses, differentiable."""

    def learn(self, examples: Sequence[Example]) -> dict[str, float]:
        rows, pairs = self.rows(examples), len(examples)
        sums = self.sums.backward(rows, lambda s: self.losses(rows, s).sum() / pairs)
        return {name: value / pairs for name, value in self._metrics(rows, sums).items()}

    def measure(self, examples: Sequence[Example]) -> tuple[dict[str, float], float]:
        rows = self.rows(examples)
        return self._metrics(rows, self.sums.of(rows)), float(len(examples))

    @torch.no_grad()
    def _metrics(self, rows: Sequence[Row], sums_R: Tensor) -> dict[str, float]:
        margins_P = self.margins(rows, sums_R)
        better, worse = sides(sums_R)
        return {
            "loss": float(self.losses(rows, sums_R).sum()),
            "margin": float(margins_P.sum()),
            "accuracy": float(accuracy(margins_P)),
            f"pos_{self.summed}": float(better.sum()),
            f"neg_{self.summed}": float(worse.sum()),
        }


def sides(values_R: Tensor) -> tuple[Tensor, Tensor]:
    """Split rows in the order better, worse, ... into the better and the worse of each pair."""
    return values_R[0::2], values_R[1::2]
