"""Combined reward: weighted sums, normalization, missing scores."""

from __future__ import annotations

import pytest

from atroposlib.envs.reward_fns import CombinedReward, registry
from atroposlib.errors import ConfigError
from tests.envs.reward_fns.toy_rewards import Fixed, Length, Log

PARTS = [Fixed(scores=[1.0, 0.0, 2.0], weight=2.0), Fixed(scores=[0.0, 1.0, 1.0], weight=3.0)]


@pytest.mark.parametrize(
    ("normalization", "scores"),
    [
        ("none", [2.0, 3.0, 7.0]),
        ("sum", [2 / 5, 3 / 5, 7 / 5]),
        ("minmax", [0.0, 0.2, 1.0]),
    ],
)
def test_a_combination_is_the_weighted_sum(normalization, scores):
    combined = CombinedReward(PARTS, normalization=normalization)
    assert combined(["a", "b", "c"]) == pytest.approx(scores)
    combined.weight = 10.0
    assert combined(["a", "b", "c"]) == pytest.approx([10 * score for score in scores])


def test_a_combination_without_all_its_parts_has_no_score():
    parts = [Length(), Fixed(scores=[1.0, 1.0, 1.0])]
    assert CombinedReward(parts)(["", "ab", "abc"]) == [None, 3.0, 4.0]
    assert CombinedReward(parts, "minmax")(["", "ab", "abc"]) == [None, 0.0, 1.0]
    assert CombinedReward(parts, "minmax")(["ab", "ab", "ab"]) == [0.0, 0.0, 0.0]


def test_a_combination_is_made_from_names_and_logs_its_parts():
    log = Log()
    config = {
        "type": "combined",
        "params": {"rewards": ["format", {"type": "r1", "weight": 2.0}]},
    }
    combined = registry.create(config)
    combined.set_wandb_logger(log)
    assert combined(["<think>a</think>42"], solution="42") == [3.5]
    assert [next(iter(metrics)).split("/")[1] for metrics in log.logged] == [
        "formatreward",
        "r1reward",
        "combinedreward",
    ]


@pytest.mark.parametrize(
    ("parts", "normalization"),
    [([], "none"), (["format"], "softmax"), ([Length(weight=0.0)], "sum")],
)
def test_a_combination_without_parts_or_weights_is_rejected(parts, normalization):
    with pytest.raises(ConfigError):
        CombinedReward(parts, normalization)
