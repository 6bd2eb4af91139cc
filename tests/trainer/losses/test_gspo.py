"""GSPO by hand: one clipped ratio per sequence."""

from __future__ import annotations

import pytest
import torch

from example_trainer.losses.clip import Eps
from example_trainer.losses.gspo import SEQUENCE_EPS
from tests.trainer.loss_batches import batch_of_ratios, gradient, run, settings

# --- gspo -----------------------------------------------------------------------------------


def test_gspo_clips_whole_sequences_by_their_geometric_mean():
    """s = (4 x 1)^(1/2) = 2, 0.5, 0.5, 2 with eps 0.2; A per row +1, +1, -1, -1.

    -min(s A, clip(s) A) = -1.2, -0.5, 0.8, 2; two tokens each; clipped: rows 0 and 2.
    """
    batch = batch_of_ratios(
        [[4.0, 1e9, 1.0], [0.5, 1e9, 0.5], [0.25, 1e9, 1.0], [4.0, 1e9, 1.0]],
        [[1.0], [1.0], [-1.0], [-1.0]],
        [[1.0, 0.0, 1.0]] * 4,
    )
    cfg = settings(clip_eps=0.2)
    loss, metrics = run("gspo", batch, cfg)
    assert float(loss) == pytest.approx(2 * (-1.2 - 0.5 + 0.8 + 2.0))
    assert int(metrics["clip_ratio"]) == 4
    assert float(metrics["ratio_mean"]) == pytest.approx(2 * (2 + 0.5 + 0.5 + 2))
    # d loss / d logprob of each trained token: two tokens x s / 2 each, -A s; 0 if clipped
    slopes = torch.tensor([0.0, -0.5, 0.0, 2.0], dtype=torch.double)
    assert torch.allclose(gradient("gspo", batch, cfg)[:, 0], slopes)


def test_gspo_with_weights_of_the_sequence_aggregation_is_the_paper_s_mean():
    """Weights 1 / length: -min(s A, clip(s) A) counts once per row, however long it is."""
    batch = batch_of_ratios([[1.1, 1.1], [0.9, 1.0]], [[1.0], [1.0]], [[0.5, 0.5], [1.0, 0.0]])
    loss, _ = run("gspo", batch, settings(clip_eps=0.2))
    assert float(loss) == pytest.approx(-1.1 - 0.9)


def test_gspo_takes_the_mean_advantage_of_a_row():
    """s = 2, A = 3 and -1, so 1: both tokens -1.2. Judged apart they would be -3.6 and 2."""
    batch = batch_of_ratios([[2.0, 1e9, 2.0]], [[3.0, 99.0, -1.0]], [[1.0, 0.0, 1.0]])
    loss, metrics = run("gspo", batch, settings(clip_eps=0.2))
    assert float(loss) == pytest.approx(-2.4)
    assert int(metrics["clip_ratio"]) == 2


@pytest.mark.parametrize(
    ("fields", "eps"),
    [
        ({}, Eps(3e-4, 4e-4)),
        ({"clip_eps": 0.1}, Eps(0.1, 0.1)),
        ({"clip_eps_high": 0.1}, Eps(3e-4, 0.1)),
        ({"clip_eps": 0.1, "clip_eps_high": 0.2}, Eps(0.1, 0.2)),
    ],
)
def test_the_bounds_of_the_paper_are_those_of_gspo_unless_others_are_named(fields, eps):
    assert SEQUENCE_EPS.of(settings(**fields)) == eps
