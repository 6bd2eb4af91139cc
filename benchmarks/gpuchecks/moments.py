"""Moments of AdamW in main memory: the same weights, less memory, seconds of a step."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor

from example_trainer.model import loading
from example_trainer.settings.config import TrainingConfig
from example_trainer.update.optimizer import build_optimizer
from gpuchecks.figures import Figure, Place, above, holds
from gpuchecks.models import weights

STEPS = 3
SPARED = 7.5  # two moments take 8 bytes of a parameter


class Training(NamedTuple):
    """Weights after the steps (on the CPU), bytes on the device at rest, seconds of the last."""

    weights: list[Tensor]
    resting: int
    seconds: float


def compare_places(place: Place) -> list[Figure]:
    """Take the same steps with the moments on the device and in main memory."""
    plain, spared = (train(place, offload) for offload in (False, True))
    same = all(
        torch.equal(ours, theirs) for ours, theirs in zip(spared.weights, plain.weights)
    )
    parameters = sum(weight.numel() for weight in plain.weights)
    figures = [
        holds("weights after three steps", "equal" if same else "different", "equal", same),
        Figure(
            "update with moments in main memory",
            f"{spared.seconds * 1e3:.1f} ms",
            f"{plain.seconds * 1e3:.1f} ms with them on the device",
        ),
    ]
    if place.on_cuda:
        each = (plain.resting - spared.resting) / parameters
        figures.append(above("bytes spared per parameter", each, SPARED))
    return figures


def train(place: Place, offload: bool) -> Training:
    cfg = TrainingConfig(
        model_name=str(weights(place)),
        device=place.device,
        seq_len=64,
        inference_urls=[],
        optimizer="adamw",
        optimizer_offload=offload,
    )
    policy = loading.load_policy(cfg)
    optimizer = build_optimizer(policy, cfg)
    before = allocated_bytes(place)
    resting, seconds = 0, 0.0
    for step in range(STEPS):
        generator = torch.Generator(policy.device).manual_seed(step)
        for parameter in policy.parameters():
            parameter.grad = torch.randn(
                parameter.shape, generator=generator, device=parameter.device
            )
        began = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        resting = allocated_bytes(place) - before  # waits for the device
        seconds = time.perf_counter() - began
    ends = [parameter.detach().cpu() for parameter in policy.parameters()]
    return Training(ends, resting, seconds)


def allocated_bytes(place: Place) -> int:
    if not place.on_cuda:
        return 0
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()
