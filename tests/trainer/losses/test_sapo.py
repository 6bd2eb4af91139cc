"""SAPO by hand: a sigmoid gate instead of a clip."""

from __future__ import annotations

import math

import pytest

from tests.trainer.loss_batches import one_token, settings, value_and_slope

# --- sapo -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "tau"), [(1.0, 2.0, 1.0), (1.5, 2.0, 1.0), (1.5, -2.0, 1.05)]
)
def test_sapo_is_a_sigmoid_gate_with_a_temperature_per_sign(ratio, advantage, tau):
    gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
    loss, slope = value_and_slope("sapo", one_token(ratio, advantage))
    assert loss == pytest.approx(-4 / tau * gate * advantage)
    assert slope == pytest.approx(-4 * gate * (1 - gate) * ratio * advantage)


def test_sapo_at_ratio_one_has_the_full_gradient_and_fades_to_both_sides():
    full = value_and_slope("sapo", one_token(1.0, 2.0))
    assert full == pytest.approx((-4.0, -2.0))  # 4 sigmoid(0) A = 2 A; slope A
    for ratio in (4.0, 10.0):
        _, slope = value_and_slope("sapo", one_token(ratio, 2.0))
        assert abs(slope) < ratio * 2.0  # of the ratio without a gate


def test_sapo_temperatures_are_settings():
    cfg = settings(sapo_tau_positive=2.0, sapo_tau_negative=3.0)
    for advantage, tau in ((1.0, 2.0), (-1.0, 3.0)):
        expected = -4 / tau / (1 + math.exp(-tau * 0.5)) * advantage
        assert value_and_slope("sapo", one_token(1.5, advantage), cfg)[0] == pytest.approx(
            expected
        )
