"""Losses of pairs: a better answer, a worse one. Not in the registry of the RL losses.

    margin  M = log pi/pi_ref (better) - log pi/pi_ref (worse)

    DPO   -(1 - s) log sigmoid(beta M) - s log sigmoid(-beta M)     s label smoothing
    IPO   (M' - 1 / (2 beta))^2                                    M' of means per token
    Bradley-Terry   -log sigmoid(r_better - r_worse)               r of a reward model

DPO: Rafailov et al. 2023, arXiv 2305.18290, eq. 7, smoothed as in its follow-up cDPO. IPO:
Azar et al. 2023, arXiv 2310.12036, eq. 17, whose log ratios we take per token, or else long
answers could only fit the target by pairs that differ by next to nothing in each token.

Letters: P pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


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
    """How many pairs are the right way round; a tie counts half."""
    return (margins_P > 0).double().sum() + (margins_P == 0).double().sum() / 2
