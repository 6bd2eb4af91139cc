"""DPPO by hand: a mask by the difference of probabilities, and a squared log ratio."""

from __future__ import annotations

import math

import pytest

from tests.trainer.loss_batches import one_token, run, settings, value_and_slope


# The sampler gave the token 0.2, the policy gives it 0.2 x ratio; delta 0.15, tau 0.1.
@pytest.mark.parametrize(
    ("ratio", "advantage", "is_left_out"),
    [
        (1.0, 2.0, False),
        (1.5, 2.0, False),  # 0.3: moved by 0.1
        (2.0, 2.0, True),  # 0.4: moved by 0.2, in the direction of A
        (2.0, -2.0, False),  # the wrong way
        (0.2, -2.0, True),  # 0.04: moved by -0.16
        (0.3, -2.0, False),  # 0.06: moved by -0.14
        (0.2, 2.0, False),
        (3.0, 0.0, False),
    ],
)
def test_a_token_is_left_out_where_its_probability_moved_far_enough(
    ratio, advantage, is_left_out
):
    cfg = settings(dppo_delta=0.15, dppo_tau=0.1)
    batch = one_token(ratio, advantage)
    objective = 0.0 if is_left_out else ratio * advantage
    penalty = 0.1 * math.log(ratio) ** 2
    slope = 2 * 0.1 * math.log(ratio) - objective
    assert value_and_slope("dppo", batch, cfg) == pytest.approx((penalty - objective, slope))
    assert int(run("dppo", batch, cfg)[1]["clip_ratio"]) == is_left_out


def test_a_rare_token_may_rise_a_hundredfold_and_a_likely_one_not_by_half():
    rare, likely = (one_token(ratio, 1.0, at=p) for ratio, p in ((100.0, 1e-3), (1.5, 0.6)))
    assert value_and_slope("dppo", rare, settings(dppo_tau=0.0))[1] == pytest.approx(-100.0)
    assert value_and_slope("dppo", likely, settings(dppo_tau=0.0))[1] == 0.0
