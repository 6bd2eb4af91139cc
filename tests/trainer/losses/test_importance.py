"""The importance weight by hand: token and sequence, truncated, masked or unused."""

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


@pytest.mark.parametrize(
    ("kind", "cap", "applied"),
    [
        ("truncate", 100.0, (16.0, 0.5)),
        ("truncate", 3.0, (3.0, 0.5)),
        ("mask", 3.0, (0.0, 0.5)),
    ],
)
def test_a_product_weight_is_that_of_all_its_trained_tokens_together(kind, cap, applied):
    """16 x 1 and 1/2 x 1/2 x 2; with ``mask`` and 3 the default of TRL."""
    batch = sequence_batch()
    cfg = settings(importance_level="product", importance_weight=kind, importance_cap=cap)
    weights = torch.tensor(applied, dtype=torch.double)[:, None]
    expected = -weights * batch["advantages"] * batch["mask"]
    assert torch.allclose(gradient("decoupled", batch, cfg), expected)


def test_a_sequence_is_masked_as_a_whole():
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


def test_masking_shrinks_the_gradient_and_never_scales_up_what_is_left():
    batch = random_batch(spread=0.5)
    batch["proximal"] = batch["logprobs"].clone()
    free = gradient("decoupled", batch, settings(importance_cap=1e9))
    masked = gradient(
        "decoupled", batch, settings(importance_cap=1.1, importance_weight="mask")
    )
    left_out = (masked == 0) & (batch["mask"] != 0)
    assert left_out.any() and torch.equal(masked[~left_out], free[~left_out])
