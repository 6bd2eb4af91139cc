"""The embedding reward, with a random model made on the spot."""

from __future__ import annotations

import numpy as np
import pytest

from atroposlib.envs.reward_fns.cosine_scaled_reward import CosineScaledReward, embed
from atroposlib.testing.tiny import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_model(tmp_path_factory.mktemp("encoder"), hidden_size=32))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return str(write_tiny_model(tmp_path_factory.mktemp("other"), seed=1, hidden_size=32))


def similarity(a, b):
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def test_the_mean_over_tokens_excludes_the_padding(model):
    alone = embed(["ab"], model)
    together = embed(["ab", "a longer text than that"], model)
    assert together[0] == pytest.approx(alone[0], abs=1e-5)


def test_the_score_is_one_minus_the_scaled_distance_within_bounds(model):
    a, b = embed(["one cat", "17 + 5"], model)
    near = similarity(a, b)
    reward = CosineScaledReward(model_name=model)
    assert reward(["one cat", "17 + 5"], solution="one cat") == [
        pytest.approx(1.0, abs=1e-5),
        pytest.approx(near, abs=1e-5),
    ]
    scaled = CosineScaledReward(model_name=model, scale_factor=100.0, min_reward=-0.5)
    assert scaled(["17 + 5"], solution="one cat") == [-0.5]
    capped = CosineScaledReward(model_name=model, max_reward=0.3)
    assert capped(["one cat"], solution="one cat") == [0.3]


def test_each_completion_has_a_solution_and_each_instance_a_model(model, other):
    reward = CosineScaledReward(model_name=model, default_reward=-0.25)
    first, second, third = reward(["a", "b", ""], solution=["a", None, "c"])
    assert first == pytest.approx(1.0, abs=1e-5)
    assert (second, third) == (-0.25, -0.25)
    assert reward(["a"]) == [-0.25]
    asked = {"completions": ["one"], "solution": "two"}
    assert CosineScaledReward(model_name=other)(**asked) != reward(**asked)
