"""Tests of the divisor of the token sum and its effect on a loss."""

from __future__ import annotations

import pytest
import torch

from atroposlib.errors import ConfigError
from example_trainer.data import rows
from tests.trainer.loss_batches import random_batch, run
from tests.trainer.rows import row

ROWS = [row([1], [2]), row([1], [2, 3, 4])]


def mean_nll(aggregation: str, length: int | None = None) -> tuple[float, torch.Tensor]:
    """Cross entropy of 1 and 3 trained tokens under an aggregation, and its logprobs."""
    batch = random_batch(rows=2, tokens=3)
    weights_R, divisor = rows.loss_weights(ROWS, aggregation, length)
    trained = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    batch["mask"] = trained * torch.tensor(weights_R)[:, None]
    return float(run("cross_entropy", batch)[0]) / divisor, -batch["logprobs"]


def test_token_is_the_mean_over_trained_tokens():
    found, nll = mean_nll("token")
    assert found == pytest.approx(float(nll[0, 0] + nll[1].sum()) / 4)


def test_sequence_is_the_mean_over_rows_of_their_means():
    found, nll = mean_nll("sequence")
    assert found == pytest.approx(float(nll[0, 0] + nll[1].mean()) / 2)


def test_constant_is_the_sum_over_rows_times_a_length():
    found, nll = mean_nll("constant", 100)
    assert found == pytest.approx(float(nll[0, 0] + nll[1].sum()) / 200)


def test_constant_does_not_depend_on_the_lengths_of_the_rows():
    _, short = rows.loss_weights([row([1], [2])] * 2, "constant", 100)
    _, long = rows.loss_weights([row([1], [2] * 50)] * 2, "constant", 100)
    assert short == long == 200.0


def test_an_unknown_or_incomplete_aggregation_is_refused():
    for wrong in ("constant", "mean"):
        with pytest.raises(ConfigError, match="aggregation"):
            rows.loss_weights(ROWS, wrong)


def test_divisor_is_positive_without_rows_or_tokens():
    assert rows.loss_weights([], "sequence") == ([], 1.0)
    assert rows.loss_weights([], "constant", 8) == ([], 8.0)
    empty = row([1, 2], [])
    assert rows.loss_weights([empty], "sequence") == ([1.0], 1.0)
