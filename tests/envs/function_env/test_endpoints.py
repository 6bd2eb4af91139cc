"""Endpoints of one rollout: named seats, rewards of turns, limits of the settings."""

from __future__ import annotations

import pytest

from atroposlib.envs import environment
from atroposlib.errors import ConfigError
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import ASCII_ALPHABET
from tests.envs.function_env.function_toys import groups_in, made


@pytest.fixture
def played(inference_url, tmp_path):
    """Run one item of an environment: the environment, and the groups of the item."""

    async def play(env_cls, **settings):
        (tmp_path / "groups.jsonl").unlink(missing_ok=True)
        once = {"group_size": 2, "total_steps": 1, "max_num_workers": 1}
        alphabet = {"alphabet": ASCII_ALPHABET}
        env = made(env_cls, inference_url, tmp_path, **{**once, **settings}, **alphabet)
        await env.process_manager()
        return env, groups_in(tmp_path)

    return play


def trained_text(env, labels):
    return env.tokenizer.decode([label for label in labels if label != -100])


async def ask(endpoint, text, **sampling):
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        asked = [{"role": "user", "content": text}]
        reply = await client.chat.completions.create(model="any", messages=asked, **sampling)
        return reply.choices[0].message.content


def echo(prompt, index):
    return prompt.split("<|user|>")[1].split("<|end|>")[0]


async def test_named_endpoints_have_their_own_groups_and_rewards_and_may_be_frozen(
    fake, played
):
    @environment(["task"], max_num_workers=1, total_steps=2)
    async def match(task, model):
        white, black = await model.endpoint("white"), await model.endpoint("black")
        judge = await model.endpoint("judge", trainable=False)
        assert white is await model.endpoint("white")
        for name, player in (("e4", white), ("e5", black), ("who won?", judge)):
            await ask(player, name)
        white.reward(1.0)
        white.reward(0.25, "last")
        black.reward(-1.0)
        return 0.5

    fake.reply = echo
    env, groups = await played(match)
    assert [g["metadata"]["endpoint"] for g in groups] == ["white", "black"]
    assert [g["scores"] for g in groups] == [[1.25, 1.25], [-1.0, -1.0]]
    assert [g["group_id"].rpartition("/")[2] for g in groups] == ["white", "black"]
    texts = [{trained_text(env, labels) for labels in g["masks"]} for g in groups]
    assert texts == [{"e4<|end|>"}, {"e5<|end|>"}]  # the judge is not trained
    metrics = groups[0]["metadata"]["metrics"]
    assert metrics == {"white/reward": 1.25, "black/reward": -1.0, "reward": 0.5}
    told = {"role": "assistant", "content": "who won?"}
    assert groups[0]["metadata"]["untrained"] == [{"judge": [told]}] * 2
    assert "untrained" not in groups[1]["metadata"]


async def test_rewards_of_turns_are_added_to_the_score_on_both_ways(fake, played):
    @environment(["task"])
    async def stepwise(task, model):
        with pytest.raises(ConfigError, match="there is none yet"):
            model.reward(1.0)
        first = await model.chat("one")
        model.reward(9.0)
        model.reward(0.25)  # replaces the one before
        await model.chat([*first.messages, {"role": "user", "content": "two"}])
        model.reward(0.5)
        return 1.0

    @environment(["task"])
    async def agent(task, model):
        endpoint = await model.endpoint()
        for reward in (0.25, 0.5):
            await ask(endpoint, f"worth {reward}")
            endpoint.reward(reward, "last")
        return 1.0

    for env_cls in (stepwise, agent):
        _, groups = await played(env_cls)
        assert {score for group in groups for score in group["scores"]} == {1.75}


async def test_the_limits_of_the_settings_hold_for_an_agent_too(fake, played):
    @environment(["task"], max_tokens=20, stop=["."])
    async def agent(task, model):
        endpoint = await model.endpoint()
        replies = [
            await ask(endpoint, "yes. No!", **asked)
            for asked in ({}, {"max_tokens": 9000}, {"max_tokens": 9, "stop": ["e"]})
        ]
        assert replies == ["yes", "yes", "y"]
        await model.chat("yes")
        return 1.0

    fake.reply = echo
    await played(agent)
    assert {body["max_tokens"] for _, body in fake.requests} == {20, 9}
    assert {tuple(body["stop"]) for _, body in fake.requests} == {(".",), ("e", ".")}


# --- opponents --------------------------------------------------------------------------


def card(name):
    return {"id": name, "object": "model"}


@environment([{"id": "a"}, {"id": "b"}], group_size=2, total_steps=2, max_num_workers=1)
async def duel(task, model):
    model.role = "white"
    opponent = await model.endpoint("opponent", version="pool")
    reply = await model.chat("play")
    answer = await opponent.chat([*reply.messages, {"role": "user", "content": "reply"}])
    return float(answer == "reply")


@pytest.fixture
def duelled(inference_url, tmp_path):
    async def play(**settings):
        env = made(duel, inference_url, tmp_path, **settings, alphabet=ASCII_ALPHABET)
        await env.process_manager()
        return env, groups_in(tmp_path)

    return play


def last_user(prompt, index):
    return prompt.split("<|user|>")[-1].split("<|end|>")[0]


async def test_opponent_is_an_earlier_version_and_its_tokens_are_not_trained(fake, duelled):
    fake.reply = last_user
    fake.cards = [card("fake"), card("fake@3")]
    fake.reports_spans = fake.reports_header = False
    env, groups = await duelled()
    named = [body for path, body in fake.requests if body.get("model") == "fake@3"]
    assert len(named) == 4 and len(fake.requests) == 8
    for group in groups:
        texts = {env.tokenizer.decode([t for t in row if t != -100]) for row in group["masks"]}
        assert texts == {"play<|end|>"}
        metrics = group["metadata"]["metrics"]
        assert metrics == {"reward": 1.0, "opponent/version": 3.0, "opponent/fallback": 0.0}
        assert [row["role"] for row in group["metadata"]["rows"]] == ["white"] * 2
        (told, _) = group["metadata"]["untrained"]
        assert told == {"opponent": [{"role": "assistant", "content": "reply"}]}
    assert env.rollouts.record.scores() == {3: 1.0}
    # The opponent's tokens are those of a helper, as a judge's.
    states = {state for _, state in env._atropos.account._counts}
    assert "helper" in states


async def test_without_a_pool_the_present_version_plays_and_the_metrics_name_it(
    fake, duelled, caplog
):
    fake.reply = last_user
    _, groups = await duelled()
    assert {body.get("model") for _, body in fake.requests} <= {None, "fake"}
    for group in groups:
        assert group["metadata"]["metrics"] == {"reward": 1.0, "opponent/fallback": 1.0}
    assert caplog.text.count("no inference server lists an earlier version yet") == 1


async def test_further_server_gives_its_version(fake, duelled):
    fake.reply = last_user
    second = FakeInference(reply=last_user)
    second.cards = [card("frozen@40")]
    with second.running() as url:
        _, groups = await duelled(opponent_urls=[f"{url}/v1"])
    assert {body["model"] for _, body in second.requests} == {"frozen@40"}
    assert groups[0]["metadata"]["metrics"]["opponent/version"] == 40.0
