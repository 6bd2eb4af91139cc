"""Cross entropy by hand."""

from __future__ import annotations

import math

import pytest

from tests.trainer.loss_batches import one_token, run, value_and_slope


def test_cross_entropy_ignores_the_advantage():
    batch = one_token(1.0, -7.0)
    assert value_and_slope("cross_entropy", batch) == pytest.approx((-math.log(0.2), -1.0))
    batch["mask"] = batch["mask"] / 4
    loss, metrics = run("cross_entropy", batch)
    assert float(loss) == pytest.approx(-math.log(0.2) / 4)
    assert float(metrics["nll"]) == pytest.approx(-math.log(0.2))
