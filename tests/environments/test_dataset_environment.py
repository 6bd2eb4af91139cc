"""The data-set environment: rows and rewards named by settings alone."""

from __future__ import annotations

import re

import pytest
import yaml

from atroposlib.environments.dataset_environment import dataset_environment, rewards_of
from atroposlib.errors import ConfigError, DatasetUnavailable
from atroposlib.testing.fake_inference import FakeInference

ROWS = [{"question": f"{a} + 1 = ?", "answer": str(a + 1), "level": a} for a in range(12)]
REWARDS = ["accuracy", {"type": "format", "weight": 0.5, "params": {"preferred_tags": ["b"]}}]


@pytest.fixture
def env(make_env, write_rows):
    def make(url="http://127.0.0.1:9", rows=ROWS, **settings):
        path = write_rows("rows.jsonl", rows)
        given = {"prompt_field": "question", "reward_functions": REWARDS, "max_tokens": 40}
        given |= {"dataset_path": path, "max_token_length": 400, "group_size": 2, **settings}
        return make_env(dataset_environment, url, **given)

    return make


async def test_a_score_is_the_weighted_sum_of_the_named_rewards(env, groups_made):
    asked = []

    def reply(prompt, i):
        asked.append(prompt)
        (number,) = re.findall(r"(\d+) \+ 1", prompt)
        return f"<b>so</b> \\boxed{{{int(number) + 1}}}"

    with FakeInference(reply=reply).running() as url:
        [group] = await groups_made(env(url, system_prompt="Box it."), 1)
    assert group["scores"] == [1.5, 1.5]
    assert group["metadata"]["named_rewards"] == [{"accuracy": 1.0, "format": 1.0}] * 2
    assert all("Box it." in prompt for prompt in asked)


async def test_a_prefill_begins_the_reply_and_is_scored_with_it(env, groups_made):
    with FakeInference(reply=lambda prompt, i: "and</b>").running() as url:
        [group] = await groups_made(env(url, prefill="<b>so "), 1)
    assert group["scores"] == [0.5, 0.5]


async def test_rows_are_held_out_by_share_or_by_split(env, write_rows):
    one = env(eval_fraction=0.25)
    await one.setup()
    held = {item["id"] for item in one.held_out}
    trained = {(await one.get_next_item())["id"] for _ in range(12 - len(held))}
    assert held and not held & trained and len(held | trained) == 12

    folder = write_rows("data/train.jsonl", ROWS).rpartition("/")[0]
    write_rows("data/test.jsonl", ROWS[:3])
    other = env(dataset_path=folder, eval_split="test")
    await other.setup()
    assert [item["id"] for item in other.held_out] == ["test/0", "test/1", "test/2"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"reward_functions": []}, "reward_functions"),
        ({"reward_functions": ["acuracy"]}, "no reward 'acuracy'"),
        ({"reward_functions": ["format", "format"]}, "each a 'name'"),
        ({"dataset_path": None}, "dataset_path or --env.dataset_name"),
        ({"prompt_field": "text"}, "'text' is no text .*'question'"),
    ],
)
async def test_what_cannot_work_is_told_before_the_first_request(settings, told, env):
    with pytest.raises((ConfigError, DatasetUnavailable), match=told):
        await env(**settings).setup()


def test_rewards_come_from_yaml(env):
    wanted = yaml.safe_load("[accuracy, {type: format, name: tags, weight: 0}]")
    config = env(reward_functions=wanted).config
    weights = {name: weight for name, (_, weight) in rewards_of(config).items()}
    assert weights == {"accuracy": 1.0, "tags": 0.0}
