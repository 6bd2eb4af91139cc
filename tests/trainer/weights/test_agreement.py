"""What is rounding and what is other weights, with figures of a trained model in bfloat16."""

from __future__ import annotations

import random

import pytest

from example_trainer.weights.agreement import LEAST_NATS, Agreement, Tokens
from example_trainer.weights.mismatch import Mismatch

GIVEN, SAMPLED = Tokens.GIVEN, Tokens.SAMPLED


def found(tokens, mean, share):
    return Mismatch(tokens, total=tokens * mean, max=1.0, beyond=round(share * tokens))


@pytest.mark.parametrize("kind", Tokens)
def test_of_float32_one_token_in_a_hundred_may_be_beyond_and_no_mean_is_judged(kind):
    exact = Agreement.of("float32")
    assert exact.judge(Mismatch(tokens=1000, beyond=10, total=900.0), kind)
    assert not exact.judge(Mismatch(tokens=1000, beyond=11), kind)
    assert not exact.judge(Mismatch(tokens=5, beyond=1), kind)
    assert exact.judge(Mismatch(), kind) and exact.most(kind) is None
    assert Agreement.of("bfloat16", 0.5) == Agreement(0.5, 0.01)  # as the user sets


# Mean in nats and share beyond 0.2: SmolLM2-135M in bfloat16, servers and trainers of all kinds.
CORRECT = [
    (0.0612, 0.1055),
    (0.034, 0.014),
    (0.036, 0.017),
    (0.061, 0.034),
    (0.013, 0.0),
    (0.0004, 0.0),
]
# One and five steps old, of the early steps of several runs.
STALE = [(0.226, 0.33), (0.70, 0.50), (0.13, 0.19), (0.31, 0.47), (0.19, 0.29)]


@pytest.mark.parametrize(("mean", "share"), CORRECT)
@pytest.mark.parametrize("tokens", [20, 300, 5000])
@pytest.mark.parametrize("kind", Tokens)
def test_a_correct_server_is_accepted_at_the_start_and_later(mean, share, tokens, kind):
    limits = Agreement.of("bfloat16")
    assert all(limits.judge(found(tokens, mean, share), kind) for _ in range(20))


@pytest.mark.parametrize(("mean", "share"), STALE)
@pytest.mark.parametrize("usual", [None, 0.013, 0.024, 0.034])
def test_samples_of_stale_weights_are_refused_the_second_time_at_the_latest(
    mean, share, usual
):
    for tokens in (20, 300, 5000):
        limits = Agreement(0.2, 0.25, True, {} if usual is None else {SAMPLED: usual})
        once = limits.judge(found(tokens, mean, share), SAMPLED)
        assert not (once and limits.judge(found(tokens, 1.2 * mean, share), SAMPLED))
        assert not once or (mean < 0.2 and usual is not None)


def test_one_batch_that_rounds_like_a_stale_one_is_accepted():
    """0.069 where 0.055 was the limit, 12 % beyond: a run of a correct server at step 13."""
    limits = Agreement(0.2, 0.25, True, {SAMPLED: 0.0183})
    for mean in (0.069, 0.013, 0.069, 0.02):
        assert limits.judge(found(445, mean, 0.117), SAMPLED)


def test_each_server_of_a_fleet_is_doubted_on_its_own():
    limits = Agreement(0.2, 0.25, True, {GIVEN: 0.03})
    looks = [("a", 0.02, True), ("b", 0.15, True), ("a", 0.02, True), ("b", 0.19, False)]
    for name, mean, is_right in looks:
        assert limits.judge(found(300, mean, 0.1), GIVEN, source=name) == is_right


# Means of every batch, and of every second of the given texts, of a run of 40 steps whose server
# was correct; share beyond 0.2 at most 0.07.
BATCHES = (
    [0.0174, 0.0111, 0.0131, 0.0139, 0.0132, 0.0167, 0.0239, 0.0199, 0.0208, 0.0160]
    + [0.0115, 0.0153, 0.0131, 0.0127, 0.0102, 0.0198, 0.0100, 0.0161, 0.0066, 0.0036]
    + [0.0063, 0.0054, 0.0031, 0.0117, 0.0006, 0.0012, 0.0018, 0.0086, 0.0095, 0.0017]
    + [0.0002, 0.0038, 0.0003, 0.0018, 0.0035, 0.0052, 0.0015, 0.0037, 0.0013, 0.0002]
)
TEXTS = [0.0126, 0.0312, 0.0371, 0.0383, 0.0368, 0.0412, 0.0422]


def test_a_run_with_a_correct_server_is_accepted_to_its_end_at_twice_the_rounding():
    for factor in (1.0, 2.0):
        limits = Agreement.of("bfloat16")
        for mean in TEXTS:
            assert limits.judge(found(60, factor * mean, 0.07), GIVEN)
        for mean in BATCHES:
            assert limits.judge(found(350, factor * mean, 0.03), SAMPLED)


def test_the_limit_follows_the_rounding_of_the_run_for_each_kind_of_tokens():
    limits = Agreement.of("bfloat16")
    assert limits.most(SAMPLED) == limits.most(GIVEN) == 0.1
    for step in range(40):  # late in a run the policy is sure of its tokens
        assert limits.judge(found(2000, max(0.002, 0.034 * 0.85**step), 0.0), SAMPLED)
    assert limits.most(SAMPLED) == LEAST_NATS[SAMPLED] and limits.most(GIVEN) == 0.1
    behind = found(2000, 0.07, 0.02)
    assert limits.judge(behind, SAMPLED) and not limits.judge(behind, SAMPLED)
    assert limits.judge(behind, GIVEN) and limits.judge(behind, GIVEN)


def test_few_tokens_with_one_rare_difference_are_accepted():
    drawn = random.Random(0)
    limits = Agreement.of("bfloat16")
    for _ in range(200):  # of exponential distances with the mean 0.034
        distances = [drawn.expovariate(1 / 0.034) for _ in range(20)]
        beyond = sum(one > 0.2 for one in distances)
        apart = Mismatch(20, sum(distances), max(distances), beyond)
        assert limits.judge(apart, SAMPLED)


def test_the_differences_at_a_low_temperature_are_larger():
    limits = Agreement(0.2, 0.25, True, {SAMPLED: 0.03})
    assert limits.judge(found(30, 0.15, 0.15), SAMPLED, scale=2.0)
    # Only differences at temperature 1 are learned from.
    assert limits.usual == {SAMPLED: 0.03} and not limits.doubts
