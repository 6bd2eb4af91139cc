"""Tasks of the reasoning-gym package: scores, held-out split and prompts."""

from __future__ import annotations

import pytest

from atroposlib.adapters.reasoning_gym import (
    ReasoningGymConfig,
    answer_part,
    make_dataset,
    reasoning_gym,
    scorer,
    tasks,
)
from atroposlib.envs.function_env.card import play
from atroposlib.errors import ConfigError
from atroposlib.testing.fake_inference import FakeInference

PACKAGE = "reasoning_gym"
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
    assert answer_part(text) == scored


@pytest.mark.parametrize(
    ("name", "settings"),
    [("chain_som", None), ("chain_sum", {"min_term": 1}), ("chain_sum", {"min_terms": 0})],
)
def test_settings_rejected_by_reasoning_gym_are_named(name, settings):
    config = ReasoningGymConfig(dataset_name=name, dataset_kwargs=settings)
    with pytest.raises(ConfigError, match=f"--env.dataset_name {name}"):
        make_dataset(config)


@pytest.mark.parametrize(
    "name", ["chain_sum", "sudoku", "countdown", "knights_knaves", "boxnet"]
)
async def test_the_answer_of_the_package_is_a_gold_reply(name):
    settings = {"dataset_name": name, "dataset_size": 4}
    gold = reasoning_gym.definition.card.gold
    for task in tasks(ReasoningGymConfig(**settings)):
        if name == "boxnet":  # any plan that works is right, and no example is given
            assert gold(task) == ()
        else:
            reply = gold(task)
            async with scorer(ReasoningGymConfig(**settings)) as dataset:
                assert (
                    dataset.score_answer(answer=answer_part(reply), entry=task["entry"]) == 1
                )


async def test_training_held_out_and_example_questions_are_disjoint(make_env):
    env = make_env(reasoning_gym, NOWHERE, examples=2, eval_fraction=0.2)
    await env.setup()
    held_out = {item["id"] for item in env.held_out}
    first = await env.get_next_item()
    shown = {m["content"] for m in first["task"]["messages"][1:5:2]}
    epoch = {first["id"]} | {(await env.get_next_item())["id"] for _ in range(90)}
    asked = {task["entry"]["question"] for task in tasks(env.config)}
    assert len(epoch) == 91 and len(held_out) > 10 and len(shown) == 2
    assert held_out.isdisjoint(epoch) and shown.isdisjoint(asked)

    other = make_env(reasoning_gym, NOWHERE, seed=1, eval_fraction=0.2)
    await other.setup()
    trained = {(await other.get_next_item())["id"] for _ in range(90)}
    assert held_out.isdisjoint(trained)  # for any seed
    await env.close()
    await other.close()


def test_a_data_set_of_one_question_has_no_held_out_split():
    few = {"min_terms": 1, "max_terms": 1, "min_digits": 1, "max_digits": 1}
    config = ReasoningGymConfig(dataset_size=2, dataset_kwargs=few)
    with pytest.raises(ConfigError, match="too few distinct questions"):
        tasks(config)


async def test_a_group_is_prompted_with_a_solved_example_and_scored_by_reasoning_gym(
    make_env, groups_made, trained_text
):
    asked = []

    def reply(prompt, i):
        asked.append(prompt)
        return "<answer>1</answer>" if len(asked) % 2 else "= 99"

    with FakeInference(reply=reply).running() as url:
        env = make_env(reasoning_gym, url, group_size=4, max_tokens=32, max_num_workers=1)
        (group,) = await groups_made(env, 1)
    dataset, package = make_dataset(env.config)
    (task,) = [t for t in tasks(env.config) if t["entry"]["question"] in asked[0]]
    by_hand = [dataset.score_answer(answer=a, entry=task["entry"]) for a in ("1", "= 99")]
    assert sorted(group["scores"]) == sorted(by_hand * 2)
    assert "<answer>1</answer><|end|>" in [trained_text(env, group, row) for row in range(4)]
    assert group["metadata"]["source"]["package"] == package
    shown = task["messages"]
    assert asked[0].startswith(
        f"<|system|>Answer with only the result.<|end|><|user|>{shown[1]['content']}<|end|>"
        f"<|assistant|>{shown[2]['content']}<|end|><|user|>"
    )


async def test_a_number_in_a_long_answer_earns_nothing_but_what_is_extracted(
    make_env, groups_made
):
    with FakeInference(reply=lambda prompt, i: "1 2 3 4 5\nno idea").running() as url:
        env = make_env(reasoning_gym, url, group_size=2, max_tokens=32)
        (group,) = await groups_made(env, 1)
    assert group["scores"] == [0.0, 0.0]


async def test_evaluation_samples_the_held_out_tasks(make_env, evaluated):
    with FakeInference(reply=lambda prompt, i: "5").running() as url:
        env = make_env(reasoning_gym, url, eval_items=7)
        metrics, samples = await evaluated(env)
    assert len(samples) == 7
    right = sum(sample["task"]["entry"]["answer"] == "5" for sample in samples) / 7
    assert metrics["exact"] == pytest.approx(right)


@pytest.mark.slow
async def test_a_tiny_model_answers_a_group(sampled):
    (group,) = await sampled(reasoning_gym)
    assert all(0.0 <= score <= 1.0 for score in group["scores"])


async def test_a_checker_that_fails_is_raised_and_never_a_score(monkeypatch):
    def broken(self, answer, entry):
        raise ZeroDivisionError("of the checker")

    config = ReasoningGymConfig()
    monkeypatch.setattr(type(make_dataset(config)[0]), "score_answer", broken)
    with pytest.raises(ZeroDivisionError, match="of the checker"):
        await play(reasoning_gym, next(iter(tasks(config))), "7")
