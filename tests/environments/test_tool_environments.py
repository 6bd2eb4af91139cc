"""Tool calls in one turn and over several: scores by hand, then whole groups."""

from __future__ import annotations

import json

import pytest

from atroposlib.environments.common import tool_replay
from atroposlib.environments.common.tool_replay import ToolCall, UnreadableConversation
from atroposlib.environments.tool_calling_server import ToolCallingEnv, request
from atroposlib.environments.tool_use_multiturn_server import ToolUseEnv
from atroposlib.environments.tool_use_turnlevel_advantage_server import (
    TurnLevelToolUseEnv,
    per_token,
    turn_advantages,
)
from atroposlib.errors import InvalidGroup
from atroposlib.testing.fake_inference import FakeInference

ROME = ToolCall("weather", {"city": "Rome", "days": 1})
OSLO = ToolCall("weather", {"city": "Oslo", "days": 1})


@pytest.mark.parametrize(
    ("expected", "made", "score"),
    [
        ([ROME], [ToolCall("weather", {"days": 1.0, "city": "Rome"})], 1.0),
        ([ROME], [ToolCall("weather", {"days": True, "city": "Rome"})], 0.0),
        ([ROME], [ToolCall("Weather", ROME.arguments)], 0.0),
        ([ROME], [ToolCall("weather", {"city": "Rome"})], 0.0),
        ([ROME], [], 0.0),
        ([ROME, OSLO], [OSLO, ROME], 1.0),
        ([ROME, OSLO], [ROME, ROME], 0.5),
        ([ROME, ROME], [ROME, ROME], 1.0),
        ([ROME], [ROME, OSLO], 0.5),
        ([], [], 1.0),
        ([], [ROME], 0.0),
        ([ROME], [ToolCall("", None)], 0.0),
    ],
)
def test_a_turn_earns_the_fraction_of_right_calls(expected, made, score):
    assert tool_replay.turn_score(expected, made) == score


@pytest.mark.parametrize(
    ("scores", "num_turns", "reward"),
    [([1.0, 1.0], 2, 1.5), ([1.0, 0.5], 4, 0.175), ([0.0], 2, -0.2), ([1.0], 2, 0.3)],
)
def test_a_conversation_earns_its_right_turns_and_a_bonus_when_all_are_right(
    scores, num_turns, reward
):
    earned = tool_replay.conversation_reward(scores, num_turns, bonus=0.5, penalty=0.2)
    assert earned == pytest.approx(reward)


def test_recorded_turns_are_used_up_to_the_last_tool_call():
    conversation = [
        {"from": "system", "value": "tools ..."},
        {"from": "human", "value": "Weather in Rome and Oslo?"},
        {
            "from": "gpt",
            "value": '<think><tool_call>{"x": </tool_call></think>'
            '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
            "<tool_call>{'name': 'weather', 'arguments': {'city': 'Oslo'}}</tool_call>",
        },
        {
            "from": "tool",
            "value": "<tool_response>sun</tool_response>\n<tool_response>rain</tool_response>",
        },
        {"from": "gpt", "value": "Sun in Rome, rain in Oslo."},
        {"from": "human", "value": "And Bari?"},
        {
            "from": "gpt",
            "value": '<tool_call>{"name": "weather", "arguments": {"city": "Bari"}}</tool_call>',
        },
        {"from": "tool", "value": "sun"},
        {"from": "gpt", "value": "Sun."},
    ]
    first, second, third = tool_replay.turns_of(conversation)
    assert first.given == [("user", "Weather in Rome and Oslo?")]
    assert [call.arguments["city"] for call in first.expected] == ["Rome", "Oslo"]
    assert second.given == [("tool", "sun"), ("tool", "rain")]
    assert second.expected == []
    assert third.given == [("user", "And Bari?")] and len(third.expected) == 1


def test_a_recorded_refusal_is_one_turn_without_tool_calls():
    turns = tool_replay.turns_of(
        [{"from": "human", "value": "Sing!"}, {"from": "gpt", "value": "I cannot."}]
    )
    assert [turn.expected for turn in turns] == [[]]


@pytest.mark.parametrize(
    "conversation",
    [
        [{"from": "gpt", "value": "Hello."}],
        [{"from": "human", "value": "a"}, {"from": "robot", "value": "b"}],
        [
            {"from": "human", "value": "a"},
            {"from": "gpt", "value": "<tool_call>x</tool_call>"},
        ],
        [],
    ],
)
def test_conversations_that_cannot_be_replayed_raise_with_the_reason(conversation):
    with pytest.raises(UnreadableConversation):
        tool_replay.turns_of(conversation)


def test_tool_schemas_are_parsed_with_and_without_their_wrapper():
    bare = {"name": "weather", "parameters": {}}
    wrapped = {"type": "function", "function": bare}
    assert tool_replay.openai_tools(json.dumps([bare])) == [wrapped]
    assert tool_replay.openai_tools([wrapped]) == [wrapped]
    assert '"weather"' in tool_replay.tools_as_text([wrapped])


def test_a_tool_call_without_valid_json_equals_no_expected_call():
    text = (
        '<think><tool_call>{}</tool_call></think><tool_call>{"name": "weather", "arguments": '
        '{"city": "Rome", "days": 1}}</tool_call><tool_call>[1</tool_call>'
    )
    assert tool_replay.calls_in(text) == [ROME, ToolCall("", None)]


def test_a_request_stops_after_the_expected_number_of_calls():
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    turns = [("system", "s"), ("human", "h"), ("gpt", call), ("tool", "sun")]
    row = {"conversations": [{"from": a, "value": b} for a, b in turns]}
    made = request("0", row)
    assert [m["role"] for m in made["messages"]] == ["system", "user"]
    assert made["expected"] == [ToolCall("weather", {"city": "Rome"})]
    with pytest.raises(UnreadableConversation):
        request("0", {"conversations": row["conversations"][:2]})


def test_each_turn_is_compared_with_the_same_turn_of_other_samples():
    assert turn_advantages([[1, 1], [0]], [1, 0], weight=1.0) == [[2.0, 1.0], [-2.0]]
    assert turn_advantages([[1, 1], [1, 0]], [1, 0], weight=0.5) == [[0.5, 1.5], [-0.5, -1.5]]
    assert turn_advantages([[1], [1]], [0.3, 0.3], weight=1.0) == [[0.0], [0.0]]


def test_advantages_are_assigned_to_the_trained_tokens_of_their_turn():
    mask = [-100, 5, 6, -100, -100, 7]
    assert per_token(mask, [2.0, -1.0], 0) == [0.0, 2.0, 2.0, 0.0, 0.0, -1.0]
    with pytest.raises(InvalidGroup, match="only 1 turns"):
        per_token(mask, [2.0], 0)


def call(city):
    arguments = {"name": "weather", "arguments": {"city": city}}
    return f"<tool_call>\n{json.dumps(arguments)}\n</tool_call>"


WEATHER = json.dumps(
    [
        {
            "name": "weather",
            "description": "of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        }
    ]
)
CONVERSATION = {
    "conversations": [
        {"from": "system", "value": "You may call functions."},
        {"from": "human", "value": "Rome or Oslo?"},
        {"from": "gpt", "value": f"<think>Rome first</think>\n{call('Rome')}"},
        {"from": "tool", "value": "<tool_response>\nsun\n</tool_response>"},
        {"from": "gpt", "value": call("Oslo")},
        {"from": "tool", "value": "<tool_response>\nrain\n</tool_response>"},
        {"from": "gpt", "value": "Rome."},
    ],
    "tools": WEATHER,
    "task": "t",
    "category": "c",
    "source": "s",
    "scenario_category": "multi_step",
}


def traveller(prompt, i):
    """Asks for Rome; goes on to Oslo only in every second conversation."""
    if "sun" not in prompt:
        return call("Rome")
    traveller.second += 1
    return call("Oslo") if traveller.second % 2 else "I have seen enough."


@pytest.fixture
def conversations(write_rows):
    traveller.second = 0
    return write_rows("tools.jsonl", [CONVERSATION, CONVERSATION])


async def test_a_conversation_is_replayed_as_long_as_the_calls_are_right(
    make_env, conversations, groups_made, trained_text
):
    with FakeInference(reply=traveller).running() as url:
        env = make_env(ToolUseEnv, url, dataset_path=conversations, group_size=2)
        (group,) = await groups_made(env, 1)
    assert sorted(group["scores"]) == pytest.approx([0.3, 1.5])
    best = group["scores"].index(max(group["scores"]))
    assert [o["turn_scores"] for o in group["overrides"]][best] == [1.0, 1.0]
    assert group["metadata"]["metrics"] == {"success": 0.5, "turns_right": 0.75}
    expected = f"{call('Rome')}<|end|>{call('Oslo')}<|end|>"
    assert trained_text(env, group, best) == expected
    text = env.tokenizer.decode(group["tokens"][best])
    assert text.count("<|end|>") == 5  # system, user, call, response, call: none doubled
    roles = [message["role"] for message in group["messages"][best]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    answered = group["messages"][best][3]
    assert answered["content"] == "sun" and answered["tool_call_id"]
    assert all(lp == 1.0 for lp, m in zip(group["inference_logprobs"][best],
               group["masks"][best]) if m == -100)  # fmt: skip


async def test_each_turn_gets_the_advantage_of_the_calls_in_that_turn(
    make_env, conversations, groups_made
):
    with FakeInference(reply=traveller).running() as url:
        env = make_env(TurnLevelToolUseEnv, url, dataset_path=conversations, group_size=2)
        (group,) = await groups_made(env, 1)
    best = group["scores"].index(max(group["scores"]))
    # The first turn was right in both: only the outcome (+1 or -1) counts for it.
    for row, sign in ((best, 1.0), (1 - best, -1.0)):
        of_trained = [
            a for a, m in zip(group["advantages"][row], group["masks"][row]) if m != -100
        ]
        assert of_trained[0] == pytest.approx(sign)
        assert of_trained[-1] == pytest.approx(2 * sign)
        assert len(group["advantages"][row]) == len(group["tokens"][row])


async def test_tool_use_is_evaluated_on_held_out_conversations(
    make_env, conversations, evaluated
):
    with FakeInference(reply=lambda prompt, i: call("Rome")).running() as url:
        env = make_env(ToolUseEnv, url, dataset_path=conversations)
        metrics, samples = await evaluated(env)
    assert metrics == {"success": 0.0, "turns_right": 0.5, "reward": pytest.approx(0.3)}
    assert [sample["turn_scores"] for sample in samples] == [[1.0, 0.0]]
    assert len(env.train) == len(env.test) == 1 and env.train[0]["id"] != env.test[0]["id"]


async def test_a_conversation_over_the_token_limit_is_not_a_sample(make_env, conversations):
    with FakeInference().running() as url:
        env = make_env(ToolUseEnv, url, dataset_path=conversations, max_token_length=64)
        await env.setup()
        assert await env.collect_trajectory(await env.get_next_item()) == (None, [])
        await env.close()


async def test_single_calls_score_right_or_wrong_and_right_ones_are_ranked_by_brevity(
    make_env, write_rows, groups_made
):
    row = {
        "conversations": [
            {"from": "system", "value": f"Tools: {WEATHER}"},
            {"from": "human", "value": "Rome?"},
            {"from": "gpt", "value": call("Rome")},
        ]
    }
    path = write_rows("calls.jsonl", [row] * 4)
    replies = [call("Rome"), call("Oslo"), call("Rome") + call("Rome"), "I do not know it"]
    with FakeInference(reply=lambda prompt, i: replies[i]).running() as url:
        env = make_env(ToolCallingEnv, url, dataset_path=path, group_size=4)
        (group,) = await groups_made(env, 1)
    assert group["scores"] == [1.0, 0.0, 0.0, 0.0]
    wordy = [call("Rome"), "x" * 300 + call("Rome")]
    with FakeInference(reply=lambda prompt, i: wordy[i]).running() as url:
        env = make_env(
            ToolCallingEnv, url, dataset_path=path, group_size=2, max_token_length=800
        )
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    length = len(group["tokens"][1])
    assert 400 < length < 800
    assert group["scores"] == [1.0, pytest.approx(1 - (length - 400) / 400)]
