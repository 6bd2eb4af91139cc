"""Batches for the tests of losses: (B, T) tensors by name, and a call that fits any loss."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from example_trainer import losses
from example_trainer.settings.config import TrainingConfig

Batch = dict[str, Tensor]


def settings(**fields: Any) -> TrainingConfig:
    return TrainingConfig(model_name="m", **fields)


def random_batch(rows: int = 3, tokens: int = 5, seed: int = 0, spread: float = 0.3) -> Batch:
    """float64; behaviour, proximal and policy a little apart, some tokens not trained."""
    at = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.double, generator=at)

    behaviour = -noise(rows, tokens).abs() - 0.1
    proximal = behaviour + spread * noise(rows, tokens)
    mask = (torch.rand(rows, tokens, generator=at) < 0.7).double()
    mask[:, 0] = 1.0
    return {
        "logprobs": proximal + spread * noise(rows, tokens),
        "proximal": proximal,
        "behaviour": behaviour,
        "advantages": noise(rows, tokens),
        "mask": mask,
        "teacher": -noise(rows, tokens, 3).abs(),
    }


def batch_of_ratios(
    ratios: list[list[float]], advantages: list[list[float]], mask: list[list[float]]
) -> Batch:
    """float64 rows whose policy / proximal ratios are these; behaviour = proximal."""
    batch = random_batch(rows=len(ratios), tokens=len(ratios[0]))
    batch["proximal"] = batch["behaviour"].clone()
    batch["logprobs"] = batch["proximal"] + torch.tensor(ratios, dtype=torch.double).log()
    batch["advantages"] = torch.tensor(advantages, dtype=torch.double)
    batch["mask"] = torch.tensor(mask, dtype=torch.double)
    return batch


def one_token(
    policy: float,
    advantage: float,
    proximal: float = 1.0,
    behaviour: float = 1.0,
    at: float = 0.2,
) -> Batch:
    """One token whose probabilities are these multiples of ``at``."""
    values = {"logprobs": policy, "proximal": proximal, "behaviour": behaviour}
    batch = {
        name: torch.tensor([[math.log(at * times)]], dtype=torch.double)
        for name, times in values.items()
    }
    batch["advantages"] = torch.tensor([[advantage]], dtype=torch.double)
    batch["mask"] = torch.ones(1, 1, dtype=torch.double)
    return batch


def run(
    name: str, batch: Batch, cfg: object = None, **more: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch. Losses of a teacher get a student that moves with ``logprobs``."""
    if name in losses.OF_A_TEACHER:
        offsets = torch.tensor([0.1, 1.0, 2.0], dtype=batch["logprobs"].dtype)
        more["student_logprobs"] = batch["logprobs"].unsqueeze(-1) - offsets
        more["teacher_logprobs"] = batch["teacher"]
        more["teacher_sampled"] = batch["teacher"][..., 0]
    return losses.get(name)(
        batch["logprobs"],
        batch["proximal"],
        batch["behaviour"],
        batch["advantages"],
        batch["mask"],
        settings() if cfg is None else cfg,
        **more,
    )


def value_and_slope(name: str, batch: Batch, cfg: object = None) -> tuple[float, float]:
    """Of a batch of one token: the loss and its derivative by the logprob."""
    logprobs = batch["logprobs"].clone().requires_grad_()
    total, _ = run(name, {**batch, "logprobs": logprobs}, cfg)
    (slope,) = torch.autograd.grad(total, logprobs)
    return float(total.detach()), float(slope)


def gradient(name: str, batch: Batch, cfg: object = None, **more: Any) -> Tensor:
    """(B, T) derivative of the loss by ``logprobs``."""
    logprobs = batch["logprobs"].clone().requires_grad_()
    total, _ = run(name, {**batch, "logprobs": logprobs}, cfg, **more)
    (found,) = torch.autograd.grad(total, logprobs)
    return found
