"""The gradient of a loss of whole rows, for rows that are spread over passes and ranks.

A preference loss needs one number of each of two rows. In one pass that is one backward.
Over several, the numbers are made first without a gradient; the loss says how much each of
them counts, d loss / d number; and each pass goes backward with that weight (as in Gao et
al. 2021, arXiv 2101.06983). Loss and gradient are those of one large pass, at the price of
a second forward.

Letters: R rows, B rows of a pass, T trained tokens of its longest row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from example_trainer.data.packing import Pass
from example_trainer.data.rows import Row
from example_trainer.model.policy import PackedModel

M = TypeVar("M", bound=PackedModel)
RowLoss = Callable[[Tensor], Tensor]  # (R,) float64 sums -> the loss, a number


@dataclass(frozen=True)
class RowSums(Generic[M]):
    """Sums over the trained tokens of each row, of what ``score`` says of a pass."""

    model: M
    score: Callable[[Pass], Tensor]  # -> (B, T), 0 where a row has fewer

    @torch.no_grad()
    def of(self, rows: Sequence[Row]) -> Tensor:
        """(R,) without a gradient, on the CPU. Collective."""
        world = self.model.world
        sums = torch.zeros(len(rows), dtype=torch.float64)
        for plan in self._mine(rows):
            sums += self._sums(plan, len(rows)).cpu()
        return world.sum_(sums)

    def backward(self, rows: Sequence[Row], loss_of: RowLoss) -> Tensor:
        """Add the gradient of ``loss_of(sums)`` to the parameters; the sums. Collective."""
        mine = self._mine(rows)
        if self.model.world.size == 1 and len(mine) == 1:
            sums = self._sums(mine[0], len(rows)).cpu()
            torch.autograd.backward(loss_of(sums))
            return sums.detach()
        sums = self.of(rows)
        leaf = sums.clone().requires_grad_()
        (weights,) = torch.autograd.grad(loss_of(leaf), leaf)
        for plan in mine:
            torch.autograd.backward(self._sums(plan, len(rows)).cpu() @ weights)
        return sums

    def _mine(self, rows: Sequence[Row]) -> list[Pass]:
        world = self.model.world
        return self.model.plan(rows, divisor=world.size)[world.rank :: world.size]

    def _sums(self, plan: Pass, count: int) -> Tensor:
        numbers = self.score(plan).double().sum(1)  # (B,)
        places = torch.tensor(plan.row_ids, dtype=torch.long, device=numbers.device)
        return numbers.new_zeros(count).index_add(0, places, numbers)


def sides(values_R: Tensor) -> tuple[Tensor, Tensor]:
    """The better and the worse of each pair, of rows in the order better, worse, ..."""
    return values_R[0::2], values_R[1::2]
