"""Tasks of the reasoning-gym package: scores, held-out split and prompts."""

from __future__ import annotations

import sys

import pytest

from atroposlib.environments.reasoning_gym_server import (
    ReasoningGymEnv,
    extracted,
    make_dataset,
)
from atroposlib.errors import ConfigError
from atroposlib.testing.fake_inference import FakeInference

NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("text", "scored"),
    [
        ("7", "7"),
        ("3 + 4 is seven.\n 7 \n\n", "7"),
        ("I think.\nAnswer: 7\nor so", "7"),
        ("answer: 6, no, answer: 7", "7"),
        ("<answer>6</answer> no, <answer> 7\n</answer> Answer: 8", "7"),
        ("Answer:", "Answer:"),
        ("  \n", None),
        ("", None),
    ],
)
def test_tagged_answers_precede_named_answers_and_both_precede_the_last_line(text, scored):
    assert extracted(text) == scored


def test_a_missing_package_is_reported_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"atroposlib\[reasoning-gym\]"):
        make_dataset("chain_sum", None, 10, 0)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("chain_som", None), ("chain_sum", {"min_term": 1}), ("chain_sum", {"min_terms": 0})],
)
def test_settings_rejected_by_reasoning_gym_are_named(name, settings):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ConfigError, match=f"--env.dataset_name {name}"):
        make_dataset(name, settings, 10, 0)


@pytest.fixture
def gym():
    return pytest.importorskip("reasoning_gym")


async def test_training_held_out_and_example_questions_are_disjoint(gym, make_env):
    env = make_env(ReasoningGymEnv, NOWHERE, examples=2, eval_fraction=0.2)
    await env.setup()
    held_out = {task["id"] for task in env.held_out}
    shown = {task["id"] for task in env.shown}
    epoch = [(await env.get_next_item())["id"] for _ in env.train]
    assert len(set(epoch)) == len(epoch)
    assert len(held_out) > 10 and len(shown) == 2
    assert held_out.isdisjoint(epoch) and shown.isdisjoint({*epoch, *held_out})

    other = make_env(ReasoningGymEnv, NOWHERE, seed=1, eval_fraction=0.2)
    await other.setup()
    assert held_out.isdisjoint(task["id"] for task in other.train)  # for any seed
    await env.close()
    await other.close()


async def test_a_data_set_of_one_question_has_no_held_out_split(gym, make_env):
    few = {"min_terms": 1, "max_terms": 1, "min_digits": 1, "max_digits": 1}
    env = make_env(ReasoningGymEnv, NOWHERE, dataset_size=2, dataset_kwargs=few)
    with pytest.raises(ConfigError, match="too few distinct questions"):
        await env.setup()
    await env.close()


async def test_a_group_is_prompted_with_a_solved_example_and_scored_by_reasoning_gym(
    gym, make_env, groups_made, trained_text
):
    asked = []

    def reply(prompt, i):
        asked.append(prompt)
        return "= 99" if i % 2 else "<answer>1</answer>"

    with FakeInference(reply=reply).running() as url:
        env = make_env(ReasoningGymEnv, url, group_size=4, max_new_tokens=32)
        (group,) = await groups_made(env, 1)
    (task,) = [t for t in env.train if t["entry"]["question"] in asked[0]]
    by_hand = [
        float(env.dataset.score_answer(answer=text, entry=task["entry"]))
        for text in ("1", "= 99")
    ]
    assert group["scores"] == by_hand * 2
    assert trained_text(env, group, 0) == "<answer>1</answer><|end|>"
    shown = env.shown[0]["entry"]
    assert asked[0].startswith(
        f"<|system|>Answer with only the result.<|end|><|user|>{shown['question']}<|end|>"
        f"<|assistant|>{shown['answer']}<|end|><|user|>"
    )


async def test_evaluation_samples_the_held_out_tasks_greedily(gym, make_env, evaluated):
    with FakeInference(reply=lambda prompt, i: "5").running() as url:
        env = make_env(ReasoningGymEnv, url, eval_items=7)
        metrics, samples = await evaluated(env)
    assert len(samples) == 7
    right = sum(sample["expected"] == "5" for sample in samples) / 7
    assert metrics["exact"] == pytest.approx(right)
    assert {sample["prompt"] for sample in samples} == {
        task["entry"]["question"] for task in env.held_out
    }
