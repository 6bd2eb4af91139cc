"""CISPO by hand: a clipped weight without a gradient, and a gradient for every token."""

from __future__ import annotations

import math

import pytest

from tests.trainer.loss_batches import one_token, random_batch, run, settings, value_and_slope


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize(("ratio", "weight"), [(0.1, 0.1), (1.0, 1.0), (1.4, 1.4), (3.0, 1.5)])
def test_the_weight_is_the_ratio_up_to_its_bound_for_both_signs(ratio, weight, advantage):
    batch = one_token(ratio, advantage)
    loss, slope = value_and_slope("cispo", batch, settings(clip_eps_high=0.5))
    assert slope == pytest.approx(-weight * advantage)  # d(log p) only: the weight has none
    assert loss == pytest.approx(-weight * advantage * math.log(0.2 * ratio))


@pytest.mark.parametrize(("fields", "bound"), [({}, 5.0), ({"clip_eps": 0.2}, 1.2)])
def test_the_bound_is_clip_eps_where_it_is_named_and_else_5(fields, bound):
    slope = value_and_slope("cispo", one_token(9.0, 1.0), settings(**fields))[1]
    assert slope == pytest.approx(-bound)


def test_the_weight_of_the_sampler_is_bounded_apart():
    """r = 3 within its bound, w = 8 cut to 5: 15; the gradient stays."""
    batch = one_token(3.0, 1.0, behaviour=1 / 8)
    _, metrics = run("cispo", batch)
    assert value_and_slope("cispo", batch)[1] == pytest.approx(-15.0)
    assert int(metrics["importance_capped_ratio"]) == 1


def test_tokens_beyond_the_bound_are_counted_and_trained():
    batch = random_batch(spread=1.0)
    _, metrics = run("cispo", batch, settings(clip_eps_high=0.2, ratio_to="sampler"))
    ratio = (batch["logprobs"] - batch["behaviour"]).exp()[batch["mask"] > 0]
    assert float(metrics["importance_capped_ratio"]) == int((ratio > 1.2).sum()) > 0
    assert float(metrics["importance_weight"]) == pytest.approx(
        float(ratio.clamp(max=1.2).sum())
    )
