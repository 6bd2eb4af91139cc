"""REINFORCE by hand."""

from __future__ import annotations

import math

import pytest

from tests.trainer.loss_batches import one_token, settings, value_and_slope

# --- reinforce and cross entropy ------------------------------------------------------------


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize(("kind", "weight"), [("none", 1.0), ("truncate", 5.0), ("mask", 0.0)])
def test_reinforce_weighs_the_policy_gradient(advantage, kind, weight):
    """log p = log 0.2; proximal / behaviour = 8, above the cap of 5."""
    batch = one_token(1.0, advantage, proximal=1.0, behaviour=1 / 8)
    expected = (-weight * advantage * math.log(0.2), -weight * advantage)
    found = value_and_slope("reinforce", batch, settings(importance_weight=kind))
    assert found == pytest.approx(expected)
