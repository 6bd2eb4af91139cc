"""Rollouts that fill the context of the model: kept, scored and counted, never drawn again."""

from __future__ import annotations

import json

import pytest

from atroposlib.envs import environment
from atroposlib.envs.base import BaseEnv, BaseEnvConfig
from atroposlib.envs.rollout.causes import OnlyFailures
from atroposlib.errors import ContextFull
from atroposlib.testing.tiny import ASCII_ALPHABET
from tests.envs.function_env.function_toys import groups_in, made

CONTEXT = 60  # tokens: three turns of the talks below
ONCE = {"group_size": 4, "total_steps": 1, "max_num_workers": 1}


@pytest.fixture
def played(inference_url, fake, tmp_path):
    """Run one item of an environment on a server of CONTEXT tokens."""
    fake.context, fake.reply = CONTEXT, lambda prompt, i: "ok"

    async def play(env_cls, **settings):
        (tmp_path / "groups.jsonl").unlink(missing_ok=True)
        alphabet = {"alphabet": ASCII_ALPHABET}
        if not issubclass(env_cls, OldStyle):
            settings["max_tokens"] = 8
        env = made(env_cls, inference_url, tmp_path, **{**ONCE, **settings}, **alphabet)
        await env.process_manager()
        return env, groups_in(tmp_path)

    return play


async def talk(model, turns):
    messages = [{"role": "user", "content": "hi"}]
    for _ in range(turns):
        reply = await model.chat(messages)
        messages = [*reply.messages, {"role": "user", "content": "go on"}]


def lengths_of(begun):
    """Environment whose rollouts want 2 and 9 turns in turn, and score their number."""

    @environment(["task"])
    async def lengths(task, model):
        turns = 9 if len(begun) % 2 else 2
        begun.append(turns)
        await talk(model, turns)
        return turns

    return lengths


@pytest.mark.parametrize(("setting", "score"), [(None, 0.0), (-1.5, -1.5)])
async def test_long_rollouts_are_kept_with_a_typed_outcome_and_the_score_of_the_setting(
    played, setting, score
):
    begun = []
    env, (group,) = await played(lengths_of(begun), context_full_score=setting)
    assert sorted(begun) == [2, 2, 9, 9]  # none was drawn again
    assert sorted(zip(group["scores"], group["outcomes"], group["finish_reasons"])) == sorted(
        [(2.0, "ok", "stop"), (score, "truncated", "length")] * 2
    )
    long, short = (
        next(m for m, o in zip(group["masks"], group["outcomes"]) if o == outcome)
        for outcome in ("truncated", "ok")
    )
    assert sum(t != -100 for t in long) > sum(t != -100 for t in short) > 0
    assert env._atropos.group_stats.totals()["samples_context_full"] == 2


async def test_a_function_that_catches_the_error_scores_the_rollout_itself(played):
    @environment(["task"])
    async def careful(task, model):
        try:
            await talk(model, 9)
        except ContextFull:
            return 0.25
        return 1.0

    _, (group,) = await played(careful)
    assert group["scores"] == [0.25] * 4 and group["outcomes"] == ["truncated"] * 4


async def test_an_agent_with_its_own_client_is_cut_off_alike(played):
    from openai import AsyncOpenAI, BadRequestError

    codes = []

    @environment(["task"])
    async def agent(task, model):
        endpoint = await model.endpoint()
        messages = [{"role": "user", "content": "hi"}]
        async with AsyncOpenAI(
            base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0
        ) as client:
            for _ in range(9):
                try:
                    reply = await client.chat.completions.create(model="m", messages=messages)
                except BadRequestError as error:
                    codes.append(error.code)
                    raise
                said = reply.choices[0].message.content
                messages += [{"role": "assistant", "content": said}, messages[0]]
        return 1.0

    _, (group,) = await played(agent, context_full_score=0.5)
    assert group["scores"] == [0.5] * 4 and group["outcomes"] == ["truncated"] * 4
    assert set(codes) == {"context_length_exceeded"}


async def test_the_context_of_an_agent_that_is_not_trained_is_no_outcome(played):
    from openai import AsyncOpenAI, BadRequestError

    @environment(["task"])
    async def judged(task, model):
        await talk(model, 1)
        judge = await model.endpoint("judge", trainable=False)
        async with AsyncOpenAI(base_url=judge.base_url, api_key=judge.api_key) as client:
            asked = [{"role": "user", "content": "x" * 100}]
            with pytest.raises(BadRequestError):
                await client.chat.completions.create(model="m", messages=asked)
        return 1.0

    _, (group,) = await played(judged)
    assert group["scores"] == [1.0] * 4 and not group.get("outcomes")


async def test_a_first_prompt_that_does_not_fit_is_a_mistake_with_its_remedy(played):
    @environment(["a", "b", "c"])
    async def long(task, model):
        return len(await model.chat("x" * 100))

    with pytest.raises(OnlyFailures, match="--max-model-len"):
        await played(long)


async def test_another_error_of_a_rollout_is_still_a_failure(played):
    @environment(["a", "b", "c"])
    async def buggy(task, model):
        try:
            await talk(model, 9)
        except ContextFull:
            return {}["score"]

    with pytest.raises(OnlyFailures, match="KeyError"):
        await played(buggy)


async def test_the_evaluation_counts_them_in_its_denominator(played, tmp_path):
    @environment(["x"], eval_dataset=["a", "b", "c", "d"])
    async def measured(task, model):
        await talk(model, 9 if task in "ab" else 2)
        return 1.0

    env, _ = await played(measured)
    env.config.data_dir_to_save_evals = str(tmp_path / "evals")
    await env.setup()
    await env.evaluate()
    await env.close()
    found = json.loads((tmp_path / "evals" / "metrics.json").read_text())["results"]["all"]
    assert (found["reward"], found["items"], found["context_full"]) == (0.5, 4, 2)


class OldStyle(BaseEnv):
    """An environment of the original's interface, whose samples are conversations."""

    name, env_config_cls = "old_style", BaseEnvConfig
    begun: list[int] = []

    async def setup(self):
        self.begun.clear()

    async def get_next_item(self):
        return "task"

    async def evaluate(self, *args, **kwargs):
        pass

    async def collect_trajectory(self, item):
        turns = 9 if len(self.begun) % 2 else 2
        self.begun.append(turns)
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            messages = [{"role": "user", "content": "hi"}]
            for _ in range(turns):
                reply = await managed.chat_completion(messages=messages, max_tokens=8)
                said = {"role": "assistant", "content": reply.choices[0].message.content}
                messages += [said, {"role": "user", "content": "go on"}]
            (node,) = managed.get_state()["nodes"]
        row = {"tokens": node.tokens, "masks": node.masked_tokens, "scores": float(turns)}
        return {**row, "inference_logprobs": node.logprobs}, []


async def test_conversations_of_old_environments_are_kept_too(played):
    env, (group,) = await played(OldStyle, context_full_score=-1.0)
    assert sorted(OldStyle.begun) == [2, 2, 9, 9]
    assert sorted(zip(group["scores"], group["outcomes"])) == [
        (-1.0, "truncated"),
        (-1.0, "truncated"),
        (2.0, "ok"),
        (2.0, "ok"),
    ]
    assert env._atropos.group_stats.totals()["samples_context_full"] == 2


async def test_a_first_prompt_that_is_too_long_names_line_item_and_both_lengths(played):
    @environment(["task"])
    async def long(task, model):
        await model.chat("x" * 100)
        return 1

    with pytest.raises(OnlyFailures) as ended:
        await played(long)
    text = str(ended.value)
    assert "test_full_context.py:" in text and 'in `await model.chat("x" * 100)`' in text
    assert f"{CONTEXT} tokens" in text and "on item 'task'" in text and "{" not in text, text
