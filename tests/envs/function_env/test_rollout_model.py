"""Tool calls of the model, and agents with a separate client: every turn is trained."""

from __future__ import annotations

import json

import pytest

from atroposlib.envs import Reward, environment
from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.rollout.causes import OnlyFailures
from atroposlib.generation.proxy.in_process import serving_proxy
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.generation.sessions.remote import TOKEN_VARIABLE
from atroposlib.testing.tiny import ASCII_ALPHABET, CHAT_TEMPLATE
from tests.envs.function_env.function_toys import made

TOOL_TEMPLATE = (
    "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}" + CHAT_TEMPLATE
)
TASK = {"id": "17*23", "a": 17, "b": 23}
CALL = '<tool_call>{"name": "multiply", "arguments": {"a": 17, "b": 23}}</tool_call>'


def multiply(a: int, b: int) -> int:
    """The product of two numbers."""
    return a * b


def calls_and_then_answers(prompt, index):
    return "391" if "391" in prompt else CALL


@pytest.fixture
def env_of(inference_url, tmp_path):
    once = {"group_size": 2, "total_steps": 1, "alphabet": ASCII_ALPHABET}

    def make(env_cls, template=TOOL_TEMPLATE, **settings):
        env = made(env_cls, inference_url, tmp_path, **{**once, **settings})
        env.tokenizer.chat_template = template
        return env

    return make


async def only_group(env, tmp_path):
    assert await env.process_manager() == 1
    (line,) = (tmp_path / "groups.jsonl").read_text().splitlines()
    return json.loads(line)


def trained_text(env, labels):
    return env.tokenizer.decode([label for label in labels if label != -100])


async def test_tools_are_called_until_the_model_answers(fake, env_of, tmp_path):
    @environment([TASK])
    async def products(task, model):
        reply = await model.use_tools("What is 17 * 23?", tools=[multiply])
        assert [message["role"] for message in reply.messages] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        return Reward(float(reply == "391"), {"calls": len(model.replies)})

    fake.reply = calls_and_then_answers
    env = env_of(products, include_messages=True)
    group = await only_group(env, tmp_path)
    assert group["scores"] == [1.0, 1.0]
    assert group["metadata"]["metrics"] == {"calls": 2.0, "reward": 1.0}
    for row in group["metadata"]["rows"]:
        assert (row["turns"], row["tool_calls"]) == (2, 1)
        assert row["timings"].keys() == {"queue", "generate", "tools", "score"}
    for labels in group["masks"]:
        assert trained_text(env, labels) == f"{CALL}<|end|>391<|end|>"
    (called,) = group["messages"][0][1]["tool_calls"]
    assert json.loads(called["function"]["arguments"]) == {"a": 17, "b": 23}


async def test_tools_that_the_template_ignores_are_refused_or_described(
    fake, env_of, tmp_path
):
    @environment([TASK], group_size=2)
    async def products(task, model):
        reply = await model.use_tools("What is 17 * 23?", tools=[multiply])
        return float(reply == "391")

    with pytest.raises(
        OnlyFailures, match="chat template of .* ignores tools.*describe_tools"
    ):
        await env_of(products, CHAT_TEMPLATE).process_manager()
    fake.reply = calls_and_then_answers
    env = env_of(products, CHAT_TEMPLATE, describe_tools=True)
    group = await only_group(env, tmp_path)
    assert group["scores"] == [1.0, 1.0]
    prompt = env.tokenizer.decode(group["tokens"][0])
    assert (
        prompt.startswith("<|system|>You may call these functions:") and "multiply" in prompt
    )


async def test_a_call_that_is_not_awaited_is_named_by_its_line(env_of, recwarn):
    @environment([TASK])
    async def forgot(task, model):
        answer = model.chat("hello")
        return answer.strip() == "7"

    @environment([TASK])
    async def ignored(task, model):
        return model.complete("hello") == "7"

    for env_cls, line in ((forgot, r"answer = model.chat\("), (ignored, r"return model.comp")):
        says = f"write `await model.c[a-z]+.*, in `{line}"
        with pytest.raises(OnlyFailures, match=says):
            await env_of(env_cls).process_manager()
    assert not [w for w in recwarn if "never awaited" in str(w.message)]


async def test_tool_calls_can_be_answered_by_hand(fake, env_of, tmp_path):
    @environment([TASK])
    async def by_hand(task, model):
        first = await model.chat("What is 17 * 23?", tools=[multiply])
        assert first.finish_reason == "tool_calls"
        (call,) = first.tool_calls
        result = multiply(**json.loads(call["function"]["arguments"]))
        answer = {"role": "tool", "tool_call_id": call["id"], "content": str(result)}
        last = await model.chat([*first.messages, answer], tools=[multiply])
        return float(last == "391")

    fake.reply = calls_and_then_answers
    group = await only_group(env_of(by_hand), tmp_path)
    assert group["scores"] == [1.0, 1.0]


async def test_a_model_that_keeps_calling_tools_is_stopped_at_the_limit(
    fake, env_of, tmp_path
):
    @environment([TASK])
    async def endless(task, model):
        reply = await model.use_tools("What?", tools=[multiply], max_turns=3)
        return float(len(reply.tool_calls) + len(model.replies))

    fake.reply = lambda prompt, index: CALL
    group = await only_group(env_of(endless), tmp_path)
    assert group["scores"] == [4.0, 4.0]


async def test_a_tool_may_end_the_episode(fake, env_of, tmp_path):
    @environment([TASK])
    async def game(task, model):
        products = []

        def multiply(a: int, b: int) -> int:
            """The product of two numbers."""
            products.append(a * b)
            return a * b

        await model.use_tools("What?", tools=[multiply], until=lambda: 391 in products)
        return float(len(products) + len(model.replies))

    fake.reply = lambda prompt, index: CALL
    group = await only_group(env_of(game), tmp_path)
    assert group["scores"] == [2.0, 2.0]


async def test_sessions_may_be_held_by_a_proxy(
    fake, env_of, inference_url, tmp_path, monkeypatch
):
    @environment([TASK])
    async def products(task, model):
        return float(await model.use_tools("What is 17 * 23?", tools=[multiply]) == "391")

    fake.reply = calls_and_then_answers
    backend = APIServerConfig(base_url=inference_url, server_type="vllm", model_name="fake")
    behind = ServerManager([backend])
    env = env_of(products)
    async with serving_proxy(behind, env.tokenizer, "fake") as proxy:
        monkeypatch.setenv(TOKEN_VARIABLE, proxy.admin_token)
        env.server.proxy_url, env.server.use_proxy = proxy.url, True
        group = await only_group(env, tmp_path)
    await behind.close()
    assert group["scores"] == [1.0, 1.0]
    assert trained_text(env, group["masks"][0]) == f"{CALL}<|end|>391<|end|>"


async def external_agent(base_url, api_key, question):
    """Written against the package openai; without any import of training code."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        messages = [{"role": "user", "content": question}]
        tools = [{"type": "function", "function": {"name": "multiply", "parameters": {}}}]
        while True:
            completion = await client.chat.completions.create(
                model="any", messages=messages, tools=tools, max_tokens=200
            )
            message = completion.choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                result = multiply(**json.loads(call.function.arguments))
                answer = {"role": "tool", "tool_call_id": call.id, "content": str(result)}
                messages.append(answer)


async def test_an_unmodified_agent_is_trained_on_the_samples_of_its_session(
    fake, env_of, tmp_path
):
    @environment([TASK])
    async def agent(task, model):
        endpoint = await model.endpoint()
        answer = await external_agent(
            endpoint.base_url, endpoint.api_key, f"What is {task['a']} * {task['b']}?"
        )
        return float(answer == "391")

    fake.reply = calls_and_then_answers
    env = env_of(agent)
    group = await only_group(env, tmp_path)
    assert group["scores"] == [1.0, 1.0]
    for tokens, labels, logprobs, versions in zip(
        group["tokens"], group["masks"], group["inference_logprobs"], group["versions"]
    ):
        assert trained_text(env, labels) == f"{CALL}<|end|>391<|end|>"
        on = [label != -100 for label in labels]
        assert [t for t, trained in zip(tokens, on) if trained] == [
            label for label in labels if label != -100
        ]
        assert all((p == 1.0) != trained for p, trained in zip(logprobs, on))
        assert {v for v, trained in zip(versions, on) if trained} == {0}


async def test_tools_of_an_agent_are_also_described_to_a_template_that_ignores_them(
    fake, env_of, tmp_path
):
    @environment([TASK])
    async def agent(task, model):
        endpoint = await model.endpoint()
        return await external_agent(endpoint.base_url, endpoint.api_key, "17 * 23") == "391"

    with pytest.raises(OnlyFailures, match="ignores tools.*--env.describe_tools true"):
        await env_of(agent, CHAT_TEMPLATE).process_manager()
    fake.reply = calls_and_then_answers
    env = env_of(agent, CHAT_TEMPLATE, describe_tools=True)
    assert (await only_group(env, tmp_path))["scores"] == [1.0, 1.0]


async def test_direct_calls_and_agent_calls_are_rows_of_one_rollout(fake, env_of, tmp_path):
    @environment([TASK], max_num_workers=1)
    async def both(task, model):
        plan = await model.chat("plan")
        client = await model.openai()
        said = await client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "act"}]
        )
        await client.close()
        return float(plan == "plan done" and said.choices[0].message.content == "act done")

    fake.reply = lambda prompt, index: (
        prompt.split("<|user|>")[1].split("<|end|>")[0] + " done"
    )
    env = env_of(both)
    await env.process_manager()
    groups = [json.loads(s) for s in (tmp_path / "groups.jsonl").read_text().splitlines()]
    assert [group["scores"] for group in groups] == [[1.0, 1.0], [1.0, 1.0]]
    texts = {trained_text(env, labels) for group in groups for labels in group["masks"]}
    assert texts == {"plan done<|end|>", "act done<|end|>"}


@pytest.mark.parametrize("temperature", [0.0, 0.5])
async def test_an_agent_can_be_evaluated_like_any_function(
    fake, env_of, tmp_path, temperature
):
    @environment(["train"], eval_dataset=[TASK], eval_temperature=temperature)
    async def agent(task, model):
        endpoint = await model.endpoint()
        answer = await external_agent(endpoint.base_url, endpoint.api_key, "What?")
        return float(answer == "391")

    fake.reply = calls_and_then_answers
    env = env_of(agent, metrics_path=str(tmp_path / "metrics.jsonl"))
    await env.setup()
    await env.evaluate()
    await env.close()
    metrics = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (metrics["eval/reward"], metrics["eval/failed"]) == (1.0, 0)


class Vault:
    """A tool with its own schema, the state of one task, and an end."""

    name, description = "open_vault", "Open the vault."
    schema = {"type": "object", "properties": {"code": {"type": "integer"}}}

    def __init__(self, code):
        self.code, self.done, self.tried = code, False, []

    async def call(self, arguments):
        self.tried.append(arguments)
        self.done = arguments.get("code") == self.code
        return {"open": self.done}


async def test_a_tool_object_sees_the_state_of_its_task_and_ends_the_turns(
    fake, env_of, tmp_path
):
    @environment([TASK])
    async def vault(task, model):
        tool = Vault(task["a"])
        await model.use_tools("Open it.", tools=[tool, multiply], max_turns=9)
        assert tool.tried == [{"code": 1}, {"code": 17}]
        return 1 / len(model.replies)

    def tries(prompt, index):
        written = '<tool_call>{"name": "open_vault", "arguments": {"code": %d}}</tool_call>'
        return written % (17 if '{"open": false}' in prompt else 1)

    fake.reply = tries
    group = await only_group(env_of(vault), tmp_path)
    assert group["scores"] == [0.5, 0.5]
