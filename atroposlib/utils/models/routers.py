"""Routers of the mixture-of-experts layers of a transformers model: recorded, and replayed.

    hidden (N, D) -> router -> logits (N, E), weights (N, K), indices (N, K) -> experts

A module with these outputs is a router. Configurations do not state how weights follow from
logits, so a formula is fitted to what a router computes. In a replay it weighs the given experts
by the router's own logits, so that the gradient reaches these logits.

N tokens of a pass, D hidden size, E experts of a layer, K chosen experts, L layers with a router.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from atroposlib.errors import ConfigError, InvalidGroup
from atroposlib.utils.models.causal_lm import decoder
from atroposlib.wire.routing import RoutedExperts, experts_array
from atroposlib.wire.safetensors import Array

TOLERANCE = 1e-4  # error of a fitted weight, as a share of the largest
SCORES: tuple[Callable[[Tensor], Tensor], ...] = (
    partial(torch.softmax, dim=-1),
    torch.sigmoid,
)


class Router(NamedTuple):
    """A router and the number of its decoder layer, with its outputs for a few tokens."""

    module: Any
    layer: int
    logits: Tensor  # (N, E)
    weights: Tensor  # (N, K)
    indices: Tensor  # (N, K)


@torch.no_grad()
def routers_of(model: Any, tokens: Tensor) -> list[Router]:
    """The routers, by layer, found by a pass of ``tokens`` (1, N).

    None if a layer chooses experts in another way.
    """
    body = decoder(model)
    choosing = [(_layer(name), m) for name, m in body.named_modules() if hasattr(m, "top_k")]
    with outputs_of([module for _, module in choosing]) as outputs:
        if choosing:
            body(tokens, use_cache=False)
    routers = [
        Router(module, layer, *output)
        for (layer, module), output in zip(choosing, outputs)
        if isinstance(output, tuple)
        and [getattr(tensor, "ndim", 0) for tensor in output] == [2, 2, 2]
        and output[1].shape == output[2].shape == (tokens.numel(), output[2].shape[1])
        and not output[2].is_floating_point()
    ]
    routers.sort(key=lambda router: router.layer)
    layers = sorted({layer for layer, _ in choosing})
    return routers if [router.layer for router in routers] == layers else []


def _layer(name: str) -> int:
    return int((re.findall(r"\.(\d+)\.", name) or [-1])[0])


@contextmanager
def outputs_of(modules: Sequence[Any]) -> Iterator[list[Any]]:
    """The output of each module in the forward pass of this block, None where it had none."""
    outputs = [None] * len(modules)

    def keep(i: int, module: Any, args: Any, output: Any) -> None:
        outputs[i] = output

    handles = [m.register_forward_hook(partial(keep, i)) for i, m in enumerate(modules)]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def chosen_experts(outputs: Sequence[tuple[Tensor, Tensor, Tensor]], lines: int) -> Array:
    """(lines, T, L, K) int16 of the outputs of all routers in a pass of ``lines`` lines."""
    indices = torch.stack([indices for _, _, indices in outputs], 1).to("cpu", torch.int16)
    return np.asarray(indices.reshape(lines, -1, *indices.shape[1:]).numpy())


def fitted_routers(model: Any, tokens: Tensor) -> dict[str, list[Any]]:
    """Arguments of :func:`_weights`, K and E of the routers, by the name of their class.

    Raises ConfigError without routers, or for a router whose weights no formula gives.
    """
    fitted = {
        type(router.module).__name__: _fit(router) for router in routers_of(model, tokens)
    }
    if not fitted:
        raise ConfigError(
            f"router_replay: {type(model).__name__} has no layers of experts, or routers"
            " that do not return logits, weights and indices; set it to false"
        )
    return fitted


def _fit(router: Router) -> list[Any]:
    for kind, normalised in product(range(len(SCORES)), (False, True)):
        plain = _weights(kind, normalised, 1.0, router.logits.float(), router.indices)
        scale = float(f"{float(router.weights.sum() / plain.sum()):.5g}")
        worst = (scale * plain - router.weights).abs().max()
        if worst <= TOLERANCE * router.weights.abs().max():
            return [kind, normalised, scale, router.indices.shape[1], router.logits.shape[1]]
    raise ConfigError(
        f"router_replay: the weights of {type(router.module).__name__} are neither a softmax nor a"
        " sigmoid of its logits; set it to false"
    )


def _weights(kind: int, normalised: bool, scale: float, logits: Tensor, at: Tensor) -> Tensor:
    weights = SCORES[kind](logits).gather(-1, at)
    if normalised:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights if scale == 1 else weights * scale


class RouterReplay:
    """Forward hooks that give ``experts`` to the routers of a model, instead of their own choice.

    They stay set after a pass, because checkpointed activations are computed again in its
    backward pass. A token of which the same experts are given as chosen keeps its own weights.
    """

    experts: Tensor | None = None  # (N, L * K) of the present pass; -1: the router's own

    def __init__(self, model: Any, fitted: Mapping[str, Sequence[Any]]) -> None:
        named = decoder(model).named_modules()
        routers = [(_layer(name), m) for name, m in named if type(m).__name__ in fitted]
        routers.sort(key=lambda router: router[0])
        self.layers = [layer for layer, _ in routers]
        self.num_layers = int(model.config.get_text_config().num_hidden_layers)
        for i, (_, module) in enumerate(routers):
            *formula, self.top_k, self.num_experts = fitted[type(module).__name__]
            module.register_forward_hook(partial(self._replay, i, partial(_weights, *formula)))

    def follow(self, experts: Tensor | None) -> None:
        """Set the experts of the next pass."""
        self.experts = experts

    def read(self, routed: RoutedExperts | None, num_tokens: int) -> list[bytes]:
        """(L, K) int16 of each token; raises InvalidGroup if another model sampled the row."""
        count, top_k = len(self.layers), self.top_k
        rows = np.full((num_tokens, count, top_k), -1, np.int16)
        prompt_rows = experts_array(routed)[:num_tokens] if routed else rows[:0]
        # Engines report dense layers as well, or the product of the dimensions alone.
        layers, rest = divmod(prompt_rows[:1].size, top_k) if len(prompt_rows) else (count, 0)
        if (
            rest
            or layers not in (count, self.num_layers)
            or prompt_rows.max(initial=-1) >= self.num_experts
        ):
            problem = (
                f"not of a model with {count} routers of {top_k} of {self.num_experts} experts"
            )
            raise InvalidGroup("routed_experts", "", problem)
        prompt_rows = prompt_rows.reshape(len(prompt_rows), layers, top_k)
        rows[: len(prompt_rows)] = (
            prompt_rows if layers == count else prompt_rows[:, self.layers]
        )
        return [token.tobytes() for token in rows]

    def _replay(self, i: int, formula: Any, module: Any, args: Any, output: Any) -> Any:
        if self.experts is None:
            return None
        logits, weights, indices = output
        replayed = self.experts.view(len(indices), -1, indices.shape[1])[:, i]
        differs = (replayed.sort(-1)[0] != indices.sort(-1)[0]).any(-1, keepdim=True)
        differs &= (replayed >= 0).all(-1, keepdim=True)
        indices = torch.where(differs, replayed, indices)
        recomputed = formula(logits.float(), indices).to(weights.dtype)
        return logits, torch.where(differs, recomputed, weights), indices
