"""The quickstart's two tasks: rewards by table, splits, and one group end to end."""

from __future__ import annotations

import json

import pytest

from atroposlib.environments.arithmetic_server import (
    ArithmeticConfig,
    ArithmeticEnv,
    problems,
    score,
)
from atroposlib.environments.copy_server import CopyConfig, CopyEnv, letters_right
from atroposlib.envs.base import APIServerConfig
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import char_tokenizer


@pytest.mark.parametrize(
    ("text", "stopped", "reward"),
    [
        ("7", True, 1.0),
        (" 7\n", True, 1.0),
        ("7", False, 0.6),  # the right number and nothing else, but no end
        ("8", True, 0.3),
        ("8", False, 0.2),
        ("7 apples", True, 0.4 + 0.3 / 8),
        ("about 7", True, 0.4 + 0.3 / 7),
        ("it is 8", True, 0.3 / 7),
        ("seven", True, 0.0),
        ("", True, 0.0),
        ("77", True, 0.3),
    ],
)
def test_sums_earn_partial_reward_for_each_step_towards_the_exact_answer(
    text, stopped, reward
):
    assert score(text, "7", stopped) == pytest.approx(reward)


def test_the_split_of_the_sums_depends_on_the_seed_only():
    train, held_out = problems(0)
    assert (len(train), len(held_out)) == (64, 17)
    assert {p["id"] for p in train}.isdisjoint(p["id"] for p in held_out)
    assert problems(0) == problems(0)
    assert problems(1)[1] != held_out
    assert all(eval(p["id"]) == int(p["answer"]) for p in train + held_out)


@pytest.mark.parametrize(
    ("text", "reward"),
    [("abcd", 1.0), ("abed", 0.775), ("ab?d", 0.75), ("", 0.0), ("eeee", 0.1), ("abcde", 1.0)],
)
def test_copies_earn_each_correct_letter_and_a_tenth_for_using_the_alphabet(text, reward):
    assert letters_right(text, "abcd", alphabet="abcde") == pytest.approx(reward)


def environment(cls, config, url, **changes):
    server = APIServerConfig(base_url=f"{url}/v1", server_type="vllm", model_name="fake")
    env = cls(config(use_wandb=False, **changes), [server])
    env.tokenizer = char_tokenizer()
    return env


async def test_a_group_of_sums_is_token_exact_and_includes_its_exact_rate():
    fake = FakeInference(reply=lambda prompt, i: "7" if i % 4 == 0 else "no idea")
    with fake.running() as url:
        env = environment(ArithmeticEnv, ArithmeticConfig, url)
        await env.setup()
        group, backlog = await env.collect_trajectories(
            {"id": "3+4", "prompt": "What is 3 + 4?", "answer": "7"}
        )
        await env.close()
    assert group["scores"] == [1.0, 0.0, 0.0, 0.0] * 2
    assert group["metadata"]["metrics"] == {"exact": 0.25}
    assert {span["temperature"] for row in group["sampling"] for span in row} == {1.0}
    assert group["finish_reasons"][:2] == ["stop", "length"]
    assert env.tokenizer.decode([m for m in group["masks"][0] if m != -100]) == "7<|end|>"
    assert len(fake.requests) == 1 and backlog == []


@pytest.mark.parametrize(
    ("cls", "config", "answers"),
    [(ArithmeticEnv, ArithmeticConfig, 17), (CopyEnv, CopyConfig, 64)],
)
async def test_evaluation_samples_every_held_out_problem_once_and_records_the_answers(
    cls, config, answers, tmp_path
):
    with FakeInference(reply=lambda prompt, i: "7").running() as url:
        env = environment(cls, config, url, data_dir_to_save_evals=str(tmp_path))
        await env.setup()
        await env.evaluate()
        await env.close()
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    lines = [json.loads(s) for s in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(lines) == answers
    assert set(lines[0]) == {"id", "prompt", "completion", "expected", "reward", "exact"}
    assert metrics["config_general"]["generation_parameters"]["temperature"] == 0.0
    exact = sum(line["exact"] for line in lines) / answers
    assert metrics["results"]["all"]["exact"] == pytest.approx(exact)


async def test_training_uses_no_held_out_problem():
    with FakeInference().running() as url:
        for cls, config in ((ArithmeticEnv, ArithmeticConfig), (CopyEnv, CopyConfig)):
            env = environment(cls, config, url)
            await env.setup()
            asked = {(await env.get_next_item())["id"] for _ in range(300)}
            held_out = {p["id"] if isinstance(p, dict) else p for p in env.held_out}
            assert asked.isdisjoint(held_out)
            again = environment(cls, config, url)
            await again.setup()
            assert (await again.get_next_item())["id"] in asked
