"""What is rounding and what is other weights, with figures of a trained model in bfloat16."""

from __future__ import annotations

import random

import pytest

from example_trainer.weights.agreement import Agreement
from example_trainer.weights.mismatch import Mismatch


def found(tokens, mean, share):
    return Mismatch(tokens, total=tokens * mean, max=1.0, beyond=round(share * tokens))


def test_of_float32_one_token_in_a_hundred_may_be_beyond_and_no_mean_is_judged():
    exact = Agreement.of("float32")
    assert exact.accepts(Mismatch(tokens=1000, beyond=10, total=900.0))
    assert not exact.accepts(Mismatch(tokens=1000, beyond=11))
    assert not exact.accepts(Mismatch(tokens=5, beyond=1))
    assert exact.accepts(Mismatch()) and exact.most is None
    assert Agreement.of("bfloat16", 0.5) == Agreement(0.5, 0.01)  # as the user says


# Mean in nats and share beyond 0.2: SmolLM2-135M in bfloat16, servers and trainers of all kinds.
CORRECT = [
    (0.0612, 0.1055),
    (0.034, 0.014),
    (0.036, 0.017),
    (0.061, 0.034),
    (0.013, 0.0),
    (0.0004, 0.0),
]
STALE = [(0.226, 0.33), (0.70, 0.50)]  # one and five steps old


@pytest.mark.parametrize(("mean", "share"), CORRECT)
@pytest.mark.parametrize("tokens", [20, 300, 5000])
def test_a_correct_server_is_accepted_at_the_start_and_later(mean, share, tokens):
    limits = Agreement.of("bfloat16")
    assert all(limits.accepts(found(tokens, mean, share)) for _ in range(20))


@pytest.mark.parametrize(("mean", "share"), STALE)
@pytest.mark.parametrize("usual", [None, 0.013, 0.034, 0.061])
def test_stale_weights_are_refused_whatever_the_rounding(mean, share, usual):
    for tokens in (20, 300, 5000):
        assert not Agreement(0.2, 0.25, True, usual).accepts(found(tokens, mean, share))


def test_the_limit_follows_the_rounding_of_the_run():
    limits = Agreement.of("bfloat16")
    assert limits.most == 0.1
    for step in range(40):  # late in a run the policy is sure of its tokens
        assert limits.accepts(found(2000, max(0.002, 0.034 * 0.85**step), 0.0))
    assert limits.most == pytest.approx(0.02)
    assert not limits.accepts(found(2000, 0.05, 0.02))
    usual = limits.usual
    assert not limits.accepts(found(2000, 0.3, 0.5)) and limits.usual == usual


def test_few_tokens_with_one_rare_difference_are_accepted():
    drawn = random.Random(0)
    limits = Agreement.of("bfloat16")
    for _ in range(200):  # of exponential distances with the mean 0.034
        distances = [drawn.expovariate(1 / 0.034) for _ in range(20)]
        beyond = sum(one > 0.2 for one in distances)
        assert limits.accepts(Mismatch(20, sum(distances), max(distances), beyond))


def test_the_differences_at_a_low_temperature_are_larger():
    limits = Agreement(0.2, 0.25, True, 0.03)
    assert limits.accepts(found(30, 0.15, 0.15), scale=2.0)
    assert not limits.accepts(found(30, 0.15, 0.15))
    assert limits.usual == 0.03  # only differences at temperature 1 are learned from
