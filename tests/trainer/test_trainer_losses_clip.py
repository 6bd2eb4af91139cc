"""ppo, grpo and decoupled against numbers worked out by hand, on both sides of the clip."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.loss_batches import (
    gradient,
    one_token,
    random_batch,
    run,
    settings,
    value_and_slope,
)

CFG = settings(clip_eps=0.2, clip_eps_high=0.3)

# ratio, advantage, loss = -min(r A, clip(r, 0.8, 1.3) A), d loss / d logprob, clipped
BY_HAND = [
    (1.0, 2.0, -2.0, -2.0, 0),
    (1.1, 2.0, -2.2, -2.2, 0),
    (2.0, 2.0, -2.6, 0.0, 1),  # far enough up: no gradient
    (0.5, 2.0, -1.0, -1.0, 0),  # went the wrong way: full gradient
    (1.0, -2.0, 2.0, 2.0, 0),
    (0.9, -2.0, 1.8, 1.8, 0),
    (0.5, -2.0, 1.6, 0.0, 1),  # far enough down: no gradient
    (2.0, -2.0, 4.0, 4.0, 0),  # went the wrong way: full gradient
    (2.0, 0.0, 0.0, 0.0, 0),
]


def centred(name: str, ratio: float, advantage: float):
    """One token with that ratio; what the loss must not look at says something else."""
    if name == "grpo":
        return one_token(ratio, advantage, proximal=0.1, behaviour=1.0)
    if name == "ppo":
        return one_token(ratio, advantage, proximal=1.0, behaviour=0.1)
    return one_token(ratio, advantage, proximal=1.0, behaviour=1.0)


@pytest.mark.parametrize("name", ["ppo", "grpo", "decoupled"])
@pytest.mark.parametrize(("ratio", "advantage", "loss", "slope", "clipped"), BY_HAND)
def test_the_clip_is_right_for_both_signs_and_both_sides(
    name, ratio, advantage, loss, slope, clipped
):
    batch = centred(name, ratio, advantage)
    assert value_and_slope(name, batch, CFG) == pytest.approx((loss, slope))
    _, metrics = run(name, batch, CFG)
    assert int(metrics["clip_ratio"]) == clipped
    assert float(metrics["ratio_mean"]) == pytest.approx(ratio)
    assert int(metrics["dual_clip_ratio"]) == 0


def test_the_kl_of_the_metrics_is_the_estimator_that_is_never_negative():
    """r - 1 - log r at r = 2: 0.3069; at r = 1/2: 0.1931."""
    for ratio, expected in ((2.0, 0.306853), (0.5, 0.193147)):
        for name in ("ppo", "grpo", "decoupled"):
            _, metrics = run(name, centred(name, ratio, 1.0))
            assert float(metrics["approx_kl"]) == pytest.approx(expected, abs=1e-6)


def test_without_clip_eps_high_the_clip_is_symmetric():
    cfg = settings(clip_eps=0.2)
    assert value_and_slope("grpo", one_token(1.25, 1.0), cfg) == pytest.approx((-1.2, 0.0))
    assert value_and_slope("grpo", one_token(0.75, -1.0), cfg) == pytest.approx((0.8, 0.0))


@pytest.mark.parametrize("name", ["ppo", "grpo", "decoupled"])
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "bound"),
    [
        (4.0, -2.0, 6.0, 0.0, 1),  # 8 without it: bounded by c |A| = 6, no gradient
        (2.5, -2.0, 5.0, 5.0, 0),  # below c: as without it
        (0.5, -2.0, 1.6, 0.0, 0),  # the clip, not the dual clip
        (4.0, 2.0, -2.6, 0.0, 0),  # A > 0: never
    ],
)
def test_the_dual_clip_bounds_only_bad_tokens_that_became_far_likelier(
    name, ratio, advantage, loss, slope, bound
):
    cfg = settings(clip_eps=0.2, clip_eps_high=0.3, dual_clip=3.0)
    batch = centred(name, ratio, advantage)
    assert value_and_slope(name, batch, cfg) == pytest.approx((loss, slope))
    assert int(run(name, batch, cfg)[1]["dual_clip_ratio"]) == bound


# The policy is 1.1 x proximal, the proximal is w x behaviour; A = 2; cap 5, floor 0.5:
# loss = -w 1.1 x 2, and its slope the same.
@pytest.mark.parametrize(
    ("kind", "weight", "applied", "capped", "filtered"),
    [
        ("truncate", 2.0, 2.0, 0, 0),
        ("truncate", 8.0, 5.0, 1, 0),
        ("truncate", 0.25, 0.5, 1, 0),
        ("mask", 2.0, 2.0, 0, 0),
        ("mask", 8.0, 0.0, 0, 1),
        ("mask", 0.25, 0.0, 0, 1),
        ("none", 8.0, 1.0, 0, 0),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_importance_weight_is_truncated_masked_or_not_used(
    kind, weight, applied, capped, filtered, sign
):
    cfg = settings(importance_weight=kind, importance_cap=5.0, importance_floor=0.5)
    batch = one_token(1.1, sign * 2.0, proximal=1.0, behaviour=1 / weight)
    expected = -applied * 1.1 * 2.0 * sign
    assert value_and_slope("decoupled", batch, cfg) == pytest.approx((expected, expected))
    _, metrics = run("decoupled", batch, cfg)
    assert float(metrics["importance_weight"]) == pytest.approx(applied)
    assert int(metrics["importance_capped_ratio"]) == capped
    assert int(metrics["filtered_ratio"]) == filtered
    drift = weight - 1 - torch.tensor(weight).log()  # of the weight before any bound
    assert float(metrics["importance_kl"]) == pytest.approx(float(drift), rel=1e-5)


def sequence_batch():
    """Row 0: log w = log 16, masked, 0: geometric mean 4. Row 1: 1/2, 1/2, 2: 2^(-1/3)."""
    batch = random_batch(rows=2, tokens=3)
    batch["mask"] = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]], dtype=torch.double)
    weights = torch.tensor([[16.0, 1e9, 1.0], [0.5, 0.5, 2.0]], dtype=torch.double)
    batch["proximal"] = batch["logprobs"].clone()
    batch["behaviour"] = batch["proximal"] - weights.log()
    return batch


def test_a_sequence_weight_is_the_geometric_mean_of_its_trained_tokens():
    batch = sequence_batch()
    cfg = settings(importance_level="sequence", importance_cap=5.0)
    weights = torch.tensor([[4.0], [2 ** (-1 / 3)]], dtype=torch.double)
    expected = -weights * batch["advantages"] * batch["mask"]
    assert torch.allclose(gradient("decoupled", batch, cfg), expected)
    _, metrics = run("decoupled", batch, cfg)
    assert float(metrics["importance_weight"]) == pytest.approx(2 * 4 + 3 * 2 ** (-1 / 3))


def test_a_sequence_gets_one_verdict():
    batch = sequence_batch()
    for kind, first in (("mask", 0.0), ("truncate", 3.0)):
        cfg = settings(importance_level="sequence", importance_cap=3.0, importance_weight=kind)
        weights = torch.tensor([[first], [2 ** (-1 / 3)]], dtype=torch.double)
        expected = -weights * batch["advantages"] * batch["mask"]
        assert torch.allclose(gradient("decoupled", batch, cfg), expected)
    _, metrics = run(
        "decoupled",
        batch,
        settings(importance_level="sequence", importance_cap=3.0, importance_weight="mask"),
    )
    assert int(metrics["filtered_ratio"]) == 2  # tokens of row 0, the masked one not counted


def test_on_the_first_minibatch_decoupled_is_the_weighted_policy_gradient():
    """policy = proximal: -w A grad log p, the same for any clip, and dual clip."""
    batch = random_batch(spread=0.5)
    batch["proximal"] = batch["logprobs"].clone()
    weight = (batch["proximal"] - batch["behaviour"]).exp().clamp(max=1.3)
    expected = -weight * batch["advantages"] * batch["mask"]
    for fields in ({}, {"clip_eps": 0.0}, {"clip_eps": 0.9}, {"dual_clip": 1.1}):
        cfg = settings(importance_cap=1.3, **fields)
        assert torch.allclose(gradient("decoupled", batch, cfg), expected, atol=1e-12)
        _, metrics = run("decoupled", batch, cfg)
        assert float(metrics["clip_ratio"]) == float(metrics["approx_kl"]) == 0


def test_the_proximal_logprobs_may_be_the_policy_s_own_not_detached():
    batch = random_batch()
    logprobs = batch["logprobs"].clone().requires_grad_()
    for name in ("ppo", "decoupled"):
        total, _ = run(name, {**batch, "logprobs": logprobs, "proximal": logprobs})
        (attached,) = torch.autograd.grad(total, logprobs)
        detached = gradient(name, {**batch, "proximal": batch["logprobs"]})
        assert torch.equal(attached, detached) and attached.any()


def test_masking_shrinks_the_gradient_and_never_scales_up_what_is_left():
    batch = random_batch(spread=0.5)
    batch["proximal"] = batch["logprobs"].clone()
    free = gradient("decoupled", batch, settings(importance_cap=1e9))
    masked = gradient(
        "decoupled", batch, settings(importance_cap=1.1, importance_weight="mask")
    )
    left_out = (masked == 0) & (batch["mask"] != 0)
    assert left_out.any() and torch.equal(masked[~left_out], free[~left_out])
