"""Routers of tiny models of several families: found, recorded, replayed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from atroposlib.errors import ConfigError, InvalidGroup
from atroposlib.utils.models.routers import RouterReplay, fitted_routers, routers_of
from atroposlib.wire.routing import experts_entry
from tests.trainer.architectures import model_of
from tests.trainer.families import family_of
from tests.utils.models.forced_experts import WEIGHTS, forced, own_experts

TOKENS = torch.tensor([[1, 5, 9, 7, 3, 8, 2, 6]])
KNOWN = [*WEIGHTS, "granite-moe", "olmoe", "gpt-oss"]


def tiny(name: str) -> Any:
    return model_of(family_of(name)).eval()


@torch.no_grad()
def logits_of(model: Any) -> Tensor:
    logits: Tensor = model(TOKENS, use_cache=False).logits[0]
    return logits


def chosen(model: Any) -> Any:
    return own_experts(model, TOKENS[0].tolist())


def made(model: Any) -> RouterReplay:
    return RouterReplay(model, fitted_routers(model, TOKENS))


def replaying(model: Any, experts: Any) -> RouterReplay:
    replay = made(model)
    given = np.frombuffer(
        b"".join(replay.read(experts_entry(experts), TOKENS.shape[1])), np.int16
    )
    replay.experts = torch.from_numpy(given.reshape(TOKENS.shape[1], -1).astype(int))
    return replay


@pytest.mark.parametrize("name", KNOWN)
def test_replay_of_the_own_experts_in_any_order_changes_no_bit(name: str) -> None:
    model = tiny(name)
    own = logits_of(model)
    replaying(model, chosen(model)[:, :, ::-1])
    assert torch.equal(logits_of(model), own)


@pytest.mark.parametrize("name", WEIGHTS)
def test_replay_of_other_experts_is_a_forward_with_those_experts_forced(name: str) -> None:
    model = tiny(name)
    own, other = logits_of(model), (chosen(model) + 1) % 4
    with forced(model, name, other):
        expected = logits_of(model)
    replaying(model, other)
    assert (expected - own).abs().max() > 0.1
    torch.testing.assert_close(logits_of(model), expected, atol=1e-5, rtol=1e-5)


def test_tokens_without_experts_route_by_themselves() -> None:
    model = tiny("mixtral")
    own, experts = logits_of(model), chosen(model)
    other = (experts + 1) % 4
    replaying(model, other[:0])
    assert torch.equal(logits_of(model), own)
    model = tiny("mixtral")
    replaying(model, np.concatenate([experts[:5], other[5:]]))
    found = logits_of(model)
    torch.testing.assert_close(found[:5], own[:5])
    assert (found[5:] - own[5:]).abs().max() > 0.1


def test_the_gradient_of_replayed_weights_reaches_the_router() -> None:
    model = tiny("mixtral")
    replaying(model, (chosen(model) + 1) % 4)
    model(TOKENS, use_cache=False).logits.square().sum().backward()
    for router in routers_of(model, TOKENS):
        assert router.module.weight.grad.abs().max() > 0


def test_an_engine_may_report_dense_layers_or_only_the_product_of_the_dimensions() -> None:
    model = tiny("deepseek-v3")  # the first of two layers is dense
    experts = chosen(model)
    replay = made(model)
    expected = replay.read(experts_entry(experts), 8)
    all_layers = np.concatenate([np.zeros_like(experts), experts], 1)
    assert replay.read(experts_entry(all_layers), 8) == expected
    assert replay.read(experts_entry(all_layers.reshape(8, 1, 4)), 8) == expected


def test_experts_of_another_model_are_refused() -> None:
    replay = made(tiny("mixtral"))
    for foreign in (np.zeros((3, 3, 2), int), np.zeros((3, 2, 3), int), np.full((3, 2, 2), 4)):
        with pytest.raises(InvalidGroup, match="routed_experts"):
            replay.read(experts_entry(foreign), 8)


@pytest.mark.parametrize("name", ["llama", "llama 4"])
def test_models_without_routers_of_a_known_form_are_refused(name: str) -> None:
    model = tiny(name)
    assert routers_of(model, TOKENS) == []
    with pytest.raises(ConfigError, match="router_replay"):
        made(model)


def test_a_router_whose_weights_no_formula_gives_is_refused() -> None:
    model = tiny("mixtral")
    for router in routers_of(model, TOKENS):
        router.module.register_forward_hook(lambda m, a, out: (out[0], out[1].sqrt(), out[2]))
    with pytest.raises(ConfigError, match="neither a softmax nor a sigmoid"):
        made(model)
