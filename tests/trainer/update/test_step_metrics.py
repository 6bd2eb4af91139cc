"""Means over passes and ranks with true denominators."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from example_trainer.update.step_metrics import StepMetrics, add_logprobs, with_deviations


def test_a_mean_weighs_tokens_not_microbatches():
    sums = StepMetrics()
    sums.add({"entropy": torch.tensor(6.0)}, 3)
    sums.add({"entropy": torch.tensor(1.0)}, 1)
    sums.add({"nothing": 0.0}, 0)
    assert sums.means() == {"entropy": 1.75}
    assert sums.total("entropy") == 7.0 and sums.total("absent") == 0.0


def test_masked_tokens_are_excluded_from_the_means():
    nan = float("nan")
    logprobs = torch.tensor([[-1.0, -3.0, nan], [-2.0, nan, nan]])
    behaviour = torch.tensor([[-1.5, -3.0, 1.0], [-2.0, 1.0, float("inf")]])
    advantages = torch.tensor([[1.0, 1.0, nan], [-1.0, nan, nan]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    sums = StepMetrics()
    add_logprobs(sums, logprobs, behaviour, advantages, mask)
    found = with_deviations(sums.means())
    assert found == pytest.approx(
        {
            "training_logprob_mean": -2.0,
            "training_logprob_std": (2 / 3) ** 0.5,
            "inference_logprob_mean": -6.5 / 3,
            "inference_logprob_std": ((2.25 + 9 + 4) / 3 - (6.5 / 3) ** 2) ** 0.5,
            "logprob_diff_mean": 0.5 / 3,
            "logprob_diff_abs_mean": 0.5 / 3,
            "logprob_diff_max": 0.5,
            "pos_logp": -2.0,
            "neg_logp": -2.0,
        }
    )


def test_a_microbatch_without_trained_tokens_adds_nothing():
    sums = StepMetrics()
    nothing = torch.zeros(1, 2)
    add_logprobs(sums, nothing, nothing, nothing, nothing)
    assert sums.means() == {"logprob_diff_max": 0.0}


class Ranks:
    """An all-reduce between threads, as a Ranks does it between processes."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._parts: list[torch.Tensor | None] = [None] * size
        self._size = size

    def world(self, rank: int) -> SimpleNamespace:
        def sum_(tensor: torch.Tensor) -> torch.Tensor:
            self._parts[rank] = tensor.clone()
            self._barrier.wait(600)
            total = torch.stack([part for part in self._parts if part is not None]).sum(0)
            self._barrier.wait(600)
            return tensor.copy_(total)

        device = torch.device("cpu")
        return SimpleNamespace(rank=rank, size=self._size, sum_=sum_, device=device)


def test_every_rank_gets_the_mean_over_all_ranks():
    ranks, found = Ranks(2), {}

    def run(rank: int) -> None:
        sums = StepMetrics()
        # The second rank has nothing to train: it adds zeros under the same names.
        sums.add({"loss": 6.0 if rank == 0 else 0.0}, 4 if rank == 0 else 0)
        sums.add({"clip_ratio": float(rank)}, 1)
        sums.maximum({"diff": -1.0 - rank})
        sums.share(ranks.world(rank))
        found[rank] = sums.means()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert found[0] == found[1] == {"loss": 1.5, "clip_ratio": 0.5, "diff": -1.0}
