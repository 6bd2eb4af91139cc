"""Accuracy: by number, by math-verify, and None where no verdict could be reached."""

from __future__ import annotations

import pytest

from atroposlib.envs.reward_fns import accuracy_reward
from atroposlib.envs.reward_fns.accuracy_reward import AccuracyReward
from atroposlib.envs.reward_fns.math_verify.checker import CheckFailed, MathProcess
from tests.text.answer_pairs import RIGHT, WRONG


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """A separate process for each test that needs one."""
    own = MathProcess(timeout_s=30.0)
    monkeypatch.setattr(accuracy_reward, "shared_process", lambda: own)
    yield own
    own.close()


@pytest.mark.parametrize(
    ("text", "gold", "score"),
    [
        (r"\boxed{72}", "72", 1.0),
        (r"\boxed{72.0000005}", "72", 1.0),
        (r"\boxed{72.1}", "72", 0.0),
        (r"\boxed{1,000}", "so 10 * 100 = 1000\n#### 1000", 1.0),
        ("#### 72", "72", 1.0),
        ("#### 72", 72, 1.0),
        (r"<think>\boxed{1}</think>\boxed{2}", "2", 1.0),
        (r"<think>\boxed{2}</think>", "2", 0.0),
        (r"\boxed{2}" * 6, "2", 1.0),
        (r"\boxed{2}" * 7, "2", 0.0),
        (r"\boxed{2}", r"\boxed{2}", 1.0),
        (r"\boxed{2}", None, 0.0),
        (r"First \boxed{5}. That was wrong: \boxed{7}", "5", 0.0),
        (r"First \boxed{5}. That was wrong: \boxed{7}", "7", 1.0),
        (r"I get \boxed{5}, but hold on, it should be \boxed{7}", "7", 1.0),
        (r"#### 5 or #### 7", "5", 0.0),
        (r"<think>It may be \boxed{5}", "5", 0.0),
        (r"It may be \boxed{6}</think>\boxed{5}", "5", 1.0),
        (r"\boxed{0.0000001}", "0.0000005", 0.0),
        (r"\boxed{12:00}", "12:00", 1.0),
        ([{"role": "user"}, {"role": "assistant", "content": r"\boxed{5}"}], "5", 1.0),
    ],
)
def test_numbers_are_checked_in_the_same_process(process, text, gold, score):
    assert AccuracyReward()([text], solution=gold) == [score]
    assert not process.started


def test_ground_truth_is_preferred_and_may_be_given_per_completion():
    texts = [r"\boxed{1}", r"\boxed{2}"]
    reward = AccuracyReward(tolerance=0.5, weight=2.0)
    assert reward(texts, solution="1", ground_truth="2") == [0.0, 2.0]
    assert reward(texts, ground_truth=["1.4", None]) == [2.0, 0.0]
    assert reward(texts) == [0.0, 0.0]
    whole = AccuracyReward(split_on_think_tag=False, max_boxed_threshold=1)
    assert whole([r"\boxed{2}</think>", r"\boxed{2}\boxed{2}"], solution="2") == [1.0, 0.0]


def test_expressions_are_checked_by_math_verify(process):
    texts = [
        r"\boxed{\frac{144}{2}}",
        r"\boxed{x+1}",
        "the final answer is $72$.",
        "72",
        "",
        r"\boxed{}",
    ]
    assert AccuracyReward()(texts, solution="72") == [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert AccuracyReward()([r"\boxed{\frac{2}{4}}"], solution=r"\frac12") == [1.0]
    assert process.started


def test_the_table_of_textbook_answers_is_scored_like_the_verifier_does(process):
    wanted = {**dict.fromkeys(RIGHT, 1.0), **dict.fromkeys(WRONG, 0.0)}
    reward = AccuracyReward()
    scores = {
        (answer, gold): reward([f"It is \\boxed{{{answer}}}."], solution=gold)[0]
        for answer, gold in wanted
    }
    assert scores == wanted


def test_of_two_announced_answers_the_last_counts(process):
    text = "The final answer is $5$. No: the final answer is $7$."
    assert AccuracyReward()([text], solution="5") == [0.0]
    assert AccuracyReward()([text], solution="7") == [1.0]


def test_an_answer_whose_check_hangs_has_no_score_and_does_not_affect_others(process, caplog):
    hangs = r"\boxed{9^{9^{9}}}"
    assert AccuracyReward()([r"\boxed{2 \cdot 36}"], solution="72") == [1.0]
    process.timeout_s = 0.5
    assert AccuracyReward()([hangs], solution="72") == [None]
    assert "no verdict" in caplog.text
    process.timeout_s = 30.0
    assert AccuracyReward()([r"\boxed{2 \cdot 36}"], solution="72") == [1.0]
    process.kill()  # like the kernel's out-of-memory killer
    with pytest.raises(CheckFailed):
        process.equal("1", "1")
    assert process.equal(r"\boxed{1}", r"\boxed{1}")
