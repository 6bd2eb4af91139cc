"""M2PO by hand, and its mask over a minibatch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

from example_trainer import losses
from example_trainer.losses.m2po import batch_mask, kept_weights
from tests.examples import examples
from tests.trainer.loss_batches import batch_of_ratios, gradient, random_batch, run, settings

# --- m2po -----------------------------------------------------------------------------------

LOG_W = [1.0, 0.3, 0.1, 0.0]  # squares 1, 0.09, 0.01, 0


@pytest.mark.parametrize(
    ("log_w", "threshold", "expected"),
    [
        (LOG_W, 0.3, [True, True, True, True]),  # mean 0.275
        (LOG_W, 0.04, [False, True, True, True]),  # mean of the rest 0.0333
        (LOG_W, 0.03, [False, False, True, True]),
        ([3.0, -2.0, 4.0], 0.04, [False, True, False]),  # one always stays
        ([0.3, 0.3, 0.0, 0.0], 0.04, [False, True, True, True]),  # of equals the earlier
        ([], 0.04, []),
    ],
)
def test_m2po_leaves_out_the_fewest_farthest_tokens(log_w, threshold, expected):
    m2 = torch.tensor(log_w, dtype=torch.double) ** 2
    assert kept_weights(m2, threshold).tolist() == expected


def test_m2po_is_the_unclipped_ratio_of_kept_tokens():
    """log w as above, A = 2: the token with log w = 1 adds nothing, the others r A."""
    batch = random_batch(rows=2, tokens=2)
    batch["proximal"] = batch["behaviour"] + torch.tensor(LOG_W, dtype=torch.double).view(2, 2)
    batch["logprobs"] = batch["behaviour"] + math.log(3.0)
    batch["advantages"], batch["mask"] = torch.full((2, 2), 2.0), torch.ones(2, 2)
    loss, metrics = run("m2po", batch)
    assert float(loss) == pytest.approx(-3 * 3.0 * 2.0)
    assert int(metrics["filtered_ratio"]) == 1
    assert gradient("m2po", batch).flatten().tolist() == pytest.approx([0, -6, -6, -6])


def test_the_batch_mask_of_m2po_does_not_depend_on_microbatches():
    """Alone, row 0 would lose its far token; with row 1 the mean is small enough."""
    far = batch_of_ratios([[math.exp(0.4), 1.0]], [[1.0]], [[1.0, 1.0]])
    far["proximal"] = far["logprobs"].clone()
    keep = batch_mask([[0.4, 0.0], [0.0] * 8], [[0.0, 0.0], [0.0] * 8], settings())
    assert keep == [[True, True], [True] * 8]
    alone, _ = run("m2po", far)
    with_verdict, _ = run("m2po", far, keep=torch.tensor(keep[:1]))
    assert float(alone) == pytest.approx(-1.0)
    assert float(with_verdict) == pytest.approx(-1.0 - math.exp(0.4))


@examples(50)
@given(
    st.lists(st.lists(st.floats(-2, 2), max_size=5), max_size=5),
    st.sampled_from([1e-3, 0.04, 1.0]),
)
def test_the_batch_mask_of_m2po_is_the_smallest_that_meets_the_threshold(log_w_R_T, limit):
    zeros = [[0.0] * len(row) for row in log_w_R_T]
    keep_R_T = batch_mask(log_w_R_T, zeros, settings(m2_threshold=limit))
    assert [len(row) for row in keep_R_T] == [len(row) for row in log_w_R_T]
    m2 = sorted(x * x for row in log_w_R_T for x in row)
    wanted = [n for n in range(1, len(m2) + 1) if sum(m2[:n]) / n < limit]
    assert sum(map(sum, keep_R_T)) == max([1, *wanted] if m2 else [0])


def test_only_m2po_has_a_batch_mask():
    assert losses.batch_mask_of("decoupled") is None
    assert losses.batch_mask_of("m2po") is batch_mask
