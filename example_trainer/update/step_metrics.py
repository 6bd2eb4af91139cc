"""Metrics of a step: sums and counts over micro-batches and ranks, divided once.

    micro-batch --add--> sums, counts, maxima --share (all ranks)--> means

A mean of means would weigh a micro-batch of three tokens like a micro-batch of three thousand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from example_trainer.distributed.ranks import Ranks

GIGABYTE = 10**9


class StepMetrics:
    """Sums kept on the device; only :meth:`means` waits for it.

    Example: two micro-batches of 3 and 1 tokens with summed entropies of 6.0 and 1.0 give
    ``{"entropy": 1.75}``.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}

    def add(self, sums: Mapping[str, Tensor | float], count: Tensor | float) -> None:
        """Add sums over ``count`` tokens or rows."""
        for name, value in sums.items():
            _into(self._sums, name, value)
            _into(self._counts, name, count)

    def maximum(self, values: Mapping[str, Tensor | float]) -> None:
        """Values of which the largest counts."""
        for name, value in values.items():
            new = _number(value)
            old = self._maxima.get(name)
            self._maxima[name] = new if old is None else torch.maximum(old.to(new.device), new)

    def total(self, name: str) -> float:
        """The sum, 0.0 if nothing was added."""
        return float(self._sums[name]) if name in self._sums else 0.0

    def share(self, world: Ranks) -> None:
        """Add up over all ranks; a collective operation, so every rank calls it.

        Every rank has added the same names: a rank with nothing to train adds zeros.
        """
        if world.size == 1:
            return
        names, largest = sorted(self._sums), sorted(self._maxima)
        if names:
            parts = [self._sums[name] for name in names]
            parts += [self._counts[name] for name in names]
            total = world.sum_(_stack(parts, world))
            for i, name in enumerate(names):
                self._sums[name], self._counts[name] = total[i], total[len(names) + i]
        if largest:
            # A sum is the only operation that a Ranks has: each rank fills its own column.
            own = _stack([self._maxima[name] for name in largest], world)
            table = own.new_zeros(len(largest), world.size)
            table[:, world.rank] = own
            maxima = world.sum_(table).amax(dim=1)
            self._maxima.update(zip(largest, maxima))

    def means(self) -> dict[str, float]:
        """Each sum over its count, left out where nothing was counted; and the maxima."""
        values: dict[str, float] = {}
        for name, value in self._sums.items():
            count = float(self._counts[name])
            if count > 0:
                values[name] = float(value) / count
        return {**values, **{name: float(value) for name, value in self._maxima.items()}}


def _stack(numbers: list[Tensor], world: Ranks) -> Tensor:
    # Counts are CPU tensors; NCCL sums tensors of its device only.
    return torch.stack([number.to(world.device) for number in numbers])


def _number(value: Tensor | float) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().double()
    return torch.tensor(value, dtype=torch.float64)


def _into(table: dict[str, Tensor], name: str, value: Tensor | float) -> None:
    new = _number(value)
    table[name] = table[name].to(new.device) + new if name in table else new


@torch.no_grad()
def add_logprobs(
    sums: StepMetrics, logprobs: Tensor, behaviour: Tensor, advantages: Tensor, mask: Tensor
) -> None:
    """Add logprobs of policy and sampler over the trained tokens of a micro-batch.

    Args:
        logprobs, behaviour, advantages: (B, T), nats.
        mask: (B, T), True or positive where trained.
    """
    trained = mask > 0
    policy, sampler = logprobs[trained].double(), behaviour[trained].double()
    difference, advantage = policy - sampler, advantages[trained]
    sums.add(
        {
            "training_logprob_mean": policy.sum(),
            "training_logprob_square": policy.square().sum(),
            "inference_logprob_mean": sampler.sum(),
            "inference_logprob_square": sampler.square().sum(),
            "logprob_diff_mean": difference.sum(),
            "logprob_diff_abs_mean": difference.abs().sum(),
        },
        trained.sum(),
    )
    sums.maximum({"logprob_diff_max": _largest(difference.abs())})
    for name, side in (("pos_logp", advantage > 0), ("neg_logp", advantage < 0)):
        sums.add({name: policy[side].sum()}, side.sum())


def _largest(values: Tensor) -> Tensor:
    return values.max() if len(values) else values.new_zeros(())


def with_deviations(means: Mapping[str, float]) -> dict[str, float]:
    """Replace ``<x>_square`` by ``<x>_std``, the deviation over tokens, using ``<x>_mean``."""
    numbers = dict(means)
    for name in [name for name in means if name.endswith("_square")]:
        stem = name.removesuffix("_square")
        variance = numbers.pop(name) - means[f"{stem}_mean"] ** 2
        numbers[f"{stem}_std"] = math.sqrt(max(0.0, variance))
    return numbers


def device_memory(device: torch.device) -> dict[str, float]:
    """Peak memory in GB since the last call; nothing off CUDA."""
    if device.type != "cuda":
        return {}
    peaks = {
        "gpu_memory_gb": torch.cuda.max_memory_allocated(device) / GIGABYTE,
        "gpu_memory_reserved_gb": torch.cuda.max_memory_reserved(device) / GIGABYTE,
    }
    torch.cuda.reset_peak_memory_stats(device)
    return peaks
