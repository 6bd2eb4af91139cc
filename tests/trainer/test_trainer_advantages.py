from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from example_trainer import advantages


def test_rewards_are_normalised_by_the_population_deviation_of_their_group():
    # mean 0.5, population std 0.5; the sample std would be 0.577 and give 0.866
    assert advantages.compute([0, 0, 1, 1], ["a"] * 4) == [-1, -1, 1, 1]


def test_a_group_of_one_keeps_its_raw_reward():
    assert advantages.compute([0.3, 1.0, 0.0], ["a", "b", "b"]) == [0.3, 1.0, -1.0]


def test_equal_rewards_give_exactly_zero():
    assert advantages.compute([0.1] * 7, ["a"] * 7) == [0.0] * 7


def test_the_deviation_has_a_floor():
    low, high = advantages.compute([0.0, 1e-9], ["a", "a"])
    assert math.isclose(high, 0.5e-9 / 1e-8) and low == -high


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 5).map(lambda i: i / 5)),
        min_size=1,
        max_size=30,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_rows_does_not_matter(rows: list[tuple[str, float]], rng: random.Random):
    straight = advantages.compute([r for _, r in rows], [g for g, _ in rows])
    order = list(range(len(rows)))
    rng.shuffle(order)
    shuffled = advantages.compute([rows[i][1] for i in order], [rows[i][0] for i in order])
    assert [straight[i] for i in order] == shuffled
