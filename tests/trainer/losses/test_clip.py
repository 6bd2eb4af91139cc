"""ppo, grpo and decoupled against numbers worked out by hand, on both sides of the clip."""

from __future__ import annotations

import pytest

from tests.trainer.loss_batches import one_token, run, settings, value_and_slope

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
    """Build one token with that ratio; inputs the loss must ignore have other values."""
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
