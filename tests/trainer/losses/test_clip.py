"""The clip of tokens against numbers worked out by hand, on both sides of it."""

from __future__ import annotations

import pytest

from tests.trainer.loss_batches import one_token, run, settings, value_and_slope

CLIP = {"clip_eps": 0.2, "clip_eps_high": 0.3}
CENTRES = [
    ("grpo", "trainer"),
    ("grpo", "sampler"),
    ("ppo", "trainer"),
    ("decoupled", "trainer"),
]
EVERY_CENTRE = pytest.mark.parametrize(("name", "ratio_to"), CENTRES)


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


def at_ratio(ratio_to: str, ratio: float, advantage: float):
    """One token with that ratio to the centre; the other policy is ignored or corrected for."""
    other = "proximal" if ratio_to == "sampler" else "behaviour"
    return one_token(ratio, advantage, **{other: 0.1 if ratio_to == "sampler" else 1.0})


@EVERY_CENTRE
@pytest.mark.parametrize(("ratio", "advantage", "loss", "slope", "clipped"), BY_HAND)
def test_the_clip_is_right_for_both_signs_and_both_sides(
    name, ratio_to, ratio, advantage, loss, slope, clipped
):
    cfg, batch = settings(**CLIP, ratio_to=ratio_to), at_ratio(ratio_to, ratio, advantage)
    assert value_and_slope(name, batch, cfg) == pytest.approx((loss, slope))
    _, metrics = run(name, batch, cfg)
    assert int(metrics["clip_ratio"]) == clipped
    assert float(metrics["ratio_mean"]) == pytest.approx(ratio)
    assert int(metrics["dual_clip_ratio"]) == 0


def test_the_kl_of_the_metrics_is_the_estimator_that_is_never_negative():
    """r - 1 - log r at r = 2: 0.3069; at r = 1/2: 0.1931."""
    for ratio, expected in ((2.0, 0.306853), (0.5, 0.193147)):
        for name, ratio_to in CENTRES:
            cfg = settings(ratio_to=ratio_to)
            _, metrics = run(name, at_ratio(ratio_to, ratio, 1.0), cfg)
            assert float(metrics["approx_kl"]) == pytest.approx(expected, abs=1e-6)


def test_without_clip_eps_high_the_clip_is_symmetric():
    cfg = settings(clip_eps=0.2)
    assert value_and_slope("grpo", one_token(1.25, 1.0), cfg) == pytest.approx((-1.2, 0.0))
    assert value_and_slope("grpo", one_token(0.75, -1.0), cfg) == pytest.approx((0.8, 0.0))


@EVERY_CENTRE
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
    name, ratio_to, ratio, advantage, loss, slope, bound
):
    cfg = settings(**CLIP, dual_clip=3.0, ratio_to=ratio_to)
    batch = at_ratio(ratio_to, ratio, advantage)
    assert value_and_slope(name, batch, cfg) == pytest.approx((loss, slope))
    assert int(run(name, batch, cfg)[1]["dual_clip_ratio"]) == bound
