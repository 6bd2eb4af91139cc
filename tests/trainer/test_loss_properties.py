"""Each property of a loss is missed by a loss that lacks it."""

from __future__ import annotations

import pytest
import torch

from example_trainer import loss_properties as properties
from example_trainer.loss_properties import PROPERTIES


def right(batch, settings):
    tokens = batch.tokens
    per_token = -tokens.only(batch.advantages) * tokens.only(batch.logprobs)
    return tokens.loss_sum(per_token), {"plain_loss": tokens.total(per_token)}


def detached(batch, settings):
    total, metrics = right(batch, settings)
    return total * 0.5 + 0.5 * total.detach(), metrics


def unmasked(batch, settings):
    return -(batch.loss_mask * batch.advantages * batch.logprobs).sum(), {}


def forgiving(batch, settings):
    return right(batch, settings)[0].nan_to_num(), {}


def mean(batch, settings):
    return right(batch, settings)[0] / max(1, batch.logprobs.shape[0]), {}


def unweighted(batch, settings):
    tokens = batch.tokens
    return -(tokens.only(batch.advantages) * tokens.only(batch.logprobs)).sum(), {}


def biased(batch, settings):
    total, _ = right(batch, settings)
    return total + 1, {}


@pytest.mark.parametrize("check", PROPERTIES)
def test_a_right_loss_has_every_property(check):
    check(right)


@pytest.mark.parametrize(
    "check, wrong, sentence",
    [
        (properties.check_the_gradient, detached, "not the derivative"),
        (properties.check_masked_entries, unmasked, r"tokens.only\(values\)"),
        (properties.check_nan_shows, forgiving, "a NaN of a trained token is lost"),
        (properties.check_parts_add_up, mean, "return a sum over tokens, no mean"),
        (properties.check_weights, unweighted, "weights of tokens do not count"),
        (properties.check_nothing_trained, biased, "without a trained token the loss is 0"),
    ],
)
def test_a_wrong_loss_is_found(check, wrong, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check(wrong)


def test_a_loss_that_ignores_the_policy_is_found():
    with pytest.raises((AssertionError, RuntimeError)):
        properties.gradient(
            lambda batch, settings: (
                batch.advantages.sum() * torch.ones((), requires_grad=True),
                {},
            ),
            properties.random_inputs(),
        )
