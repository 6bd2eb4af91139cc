"""Base class of rewards: weights, None, failures, content of completions."""

from __future__ import annotations

import pytest

from atroposlib.envs.reward_fns import CombinedReward, RewardFunction
from atroposlib.envs.reward_fns.accuracy_reward import accuracy_reward
from atroposlib.envs.reward_fns.format_reward import format_reward
from atroposlib.errors import RolloutError
from tests.envs.reward_fns.toy_rewards import Fixed, Length, Log
from tests.envs.words import CLASS_WAYS, foreign_words

ASSISTANT = {"role": "assistant", "content": "a"}


def test_scores_are_weighted_logged_and_none_stays_none():
    log = Log()
    reward = Length(weight=0.5)
    reward.set_wandb_logger(log)
    assert reward(["ab", "", "abcd"]) == [1.0, None, 2.0]
    assert log.logged == [
        {
            "reward/length/mean_raw": 3.0,
            "reward/length/mean_weighted": 1.5,
            "reward/length/min": 2.0,
            "reward/length/max": 4.0,
        }
    ]
    assert reward([""]) == [None] and len(log.logged) == 1
    assert Length(name="other").name == "other"
    assert Length(anything=1).config == {"anything": 1}


@pytest.mark.parametrize(
    ("scores", "problem"),
    [
        ([1.0], "1 scores for 2"),
        ([1.0, float("nan")], "nan"),
        ([1.0, float("inf")], "inf"),
        ([1.0, "x"], "ValueError"),
        (None, "TypeError"),
    ],
)
def test_a_failing_reward_raises_with_its_name_and_is_not_zero(scores, problem):
    with pytest.raises(RolloutError, match=f"fixed: reward failed.*{problem}"):
        Fixed(scores=scores)(["a", "b"])


def test_a_reward_is_also_a_function_with_its_options_and_columns_by_name():
    boxed = [r"\boxed{4}", r"\boxed{4.4}"]
    assert accuracy_reward(boxed, "4") == accuracy_reward(boxed, solution="4") == [1.0, 0.0]
    assert accuracy_reward(boxed, ground_truth="4", tolerance=0.5) == [1.0, 1.0]
    assert format_reward(["<b>x</b>"], preferred_tags=["b"], question="?") == [1.0]


def test_the_abstract_base_class_cannot_be_instantiated():
    with pytest.raises(TypeError):
        RewardFunction()


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("a", "a"),
        (ASSISTANT, "a"),
        ({"message": ASSISTANT}, "a"),
        ([{"role": "user", "content": "u"}, ASSISTANT, {**ASSISTANT, "content": "b"}], "a"),
        ({"role": "user", "content": "u"}, ""),
        ({"role": "assistant", "content": None}, ""),
        ({"message": "a"}, ""),
        ([], ""),
        (None, ""),
        (3, ""),
    ],
)
def test_the_assistant_text_is_extracted_from_every_completion_format(completion, text):
    assert RewardFunction.get_content(completion) == text


#: Attributes and methods of a reward that the library reads, as RewardFunction documents them.
OF_REWARDS = set("weight name _name config wandb_logger compute log_metrics".split())


@pytest.mark.parametrize("put", CLASS_WAYS, ids=lambda way: way.__name__)
def test_every_other_word_of_a_reward_is_the_authors(put):
    class Plain(RewardFunction):
        def compute(self, completions, **kwargs):
            return [float(len(text)) for text in completions]

    words = [word for word in foreign_words() if word not in OF_REWARDS]
    assert put(Plain, words)(weight=0.5)(["ab", "abcd"]) == [1.0, 2.0]
    assert put(Plain, words)(name="x").name == "x"
    combined = CombinedReward([put(Plain, words)(weight=0.5)])
    assert combined(["ab"]) == [1.0]
