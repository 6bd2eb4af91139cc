"""Mixtures of experts whose routers can choose no experts but given ones, written out by family."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from atroposlib.utils.models.routers import chosen_experts, outputs_of, routers_of

PROBE = torch.arange(1, 9)[None]


def normalised_softmax(module: Any, hidden: Tensor, experts: Tensor) -> Tensor:
    weights = (hidden @ module.weight.T).softmax(-1).gather(-1, experts)
    return weights / weights.sum(-1, keepdim=True)


def softmax(module: Any, hidden: Tensor, experts: Tensor) -> Tensor:
    return (hidden @ module.weight.T).softmax(-1).gather(-1, experts)


def scaled_sigmoid(module: Any, hidden: Tensor, experts: Tensor) -> Tensor:
    weights = (hidden @ module.weight.T).sigmoid().gather(-1, experts)
    return weights / weights.sum(-1, keepdim=True) * 2.5


WEIGHTS = {
    "mixtral": normalised_softmax,
    "qwen3-moe": softmax,
    "deepseek-v3": scaled_sigmoid,
}


@contextmanager
def forced(model: Any, name: str, experts: Any) -> Iterator[None]:
    """In this block the routers of the model take ``experts`` (N, L, K) of all its N tokens."""
    with pytest.MonkeyPatch.context() as patch:
        for i, router in enumerate(routers_of(model, PROBE)):

            def forward(hidden: Tensor, i: int = i, module: Any = router.module) -> Any:
                flat = hidden.flatten(0, -2)
                chosen = torch.as_tensor(experts[:, i]).long()
                return flat, WEIGHTS[name](module, flat, chosen), chosen

            patch.setattr(router.module, "forward", forward)
        yield


@torch.no_grad()
def own_experts(model: Any, tokens: list[int]) -> Any:
    """(T, L, K) that the model chooses for a plain row."""
    with outputs_of([router.module for router in routers_of(model, PROBE)]) as outputs:
        model(torch.tensor([tokens]), use_cache=False)
    return chosen_experts(outputs, 1)[0]
