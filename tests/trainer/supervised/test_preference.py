"""Losses of pairs: hand-computed values, gradients, and independence of packing."""

from __future__ import annotations

import math

import pytest
import torch

from example_trainer.supervised import preference

LOG2 = math.log(2)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_margin_is_the_log_ratio_difference_to_the_reference():
    found = preference.margins(doubles(-1.0), doubles(-4.0), doubles(-2.0), doubles(-3.0))
    assert found.tolist() == [2.0]  # (-1 + 2) - (-4 + 3)


@pytest.mark.parametrize(
    ("margin", "beta", "smoothing", "loss", "slope"),
    [
        (0.0, 0.1, 0.0, LOG2, -0.05),
        (0.0, 0.1, 0.2, LOG2, -0.03),  # -beta (1 - 2 s) / 2
        (
            10.0,
            0.1,
            0.0,
            0.3132616875,
            -0.0268941421,
        ),  # -log sigmoid(1), -0.1 (1 - sigmoid(1))
        (-10.0, 0.1, 0.0, 1.3132616875, -0.0731058579),
        (10.0, 0.1, 0.25, 0.75 * 0.3132616875 + 0.25 * 1.3132616875, -0.0018941421),
    ],
)
def test_dpo(margin, beta, smoothing, loss, slope):
    margins = doubles(margin)
    found = preference.dpo(margins, beta, smoothing)
    assert found.item() == pytest.approx(loss)
    (gradient,) = torch.autograd.grad(found.sum(), margins)
    assert gradient.item() == pytest.approx(slope)


@pytest.mark.parametrize(
    ("margin", "beta", "loss", "slope"),
    [
        (0.0, 0.1, 25.0, -10.0),
        (5.0, 0.1, 0.0, 0.0),
        (7.0, 0.1, 4.0, 4.0),
        (-1.0, 0.5, 4.0, -4.0),
    ],
)
def test_ipo(margin, beta, loss, slope):
    margins = doubles(margin)
    found = preference.ipo(margins, beta)
    assert found.item() == pytest.approx(loss)
    (gradient,) = torch.autograd.grad(found.sum(), margins)
    assert gradient.item() == pytest.approx(slope)


@pytest.mark.parametrize(
    ("better", "worse", "loss"),
    [(0.0, 0.0, LOG2), (1.0, 0.0, 0.3132616875), (0.0, 1.0, 1.3132616875), (50.0, -50.0, 0.0)],
)
def test_bradley_terry(better, worse, loss):
    found = preference.bradley_terry(doubles(better), doubles(worse))
    assert found.item() == pytest.approx(loss)


def test_gradients_are_those_of_the_losses():
    margins, other = doubles(-3.0, -0.2, 0.0, 0.7, 4.0), doubles(1.0, -2.0, 0.3, 0.0, 2.0)
    assert torch.autograd.gradcheck(lambda m: preference.dpo(m, 0.3, 0.1), (margins,))
    assert torch.autograd.gradcheck(lambda m: preference.ipo(m, 0.3), (margins,))
    assert torch.autograd.gradcheck(preference.bradley_terry, (margins, other))
    assert torch.autograd.gradcheck(preference.margins, (margins, other, other, margins))


def test_a_tie_counts_half():
    assert preference.accuracy(doubles(2.0, -1.0, 0.0, 0.0)).item() == 2.0
