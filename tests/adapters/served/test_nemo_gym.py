"""A resources server on a socket: sessions, tools, verdicts and failures."""

from __future__ import annotations

import asyncio
import json

import pytest
from fastapi import FastAPI

from atroposlib.adapters import nemo_gym as adapter
from atroposlib.adapters.nemo_gym import NemoGymConfig
from atroposlib.envs.function_env.card import play
from atroposlib.errors import ConfigError
from atroposlib.processes import free_port
from tests.adapters.toys.nemo_gym_server import weather_app
from tests.serving import served

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
INPUT = [
    {"role": "developer", "content": "Use the tool."},
    {"role": "user", "content": "Rome?"},
]
ROW = {"responses_create_params": {"input": INPUT, "tools": [TOOL]}, "city": "Rome"}


def call(city="Rome", name="get_weather", field="city"):
    return f'<tool_call>{{"name": "{name}", "arguments": {{"{field}": "{city}"}}}}</tool_call>'


async def score(replies, app=None, row=ROW, **settings):
    with served(app or weather_app()) as url:
        task = {"id": "rome", "row": row}
        return await play(adapter.nemo_gym, task, replies, env_id=url, **settings)


def written(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


async def test_a_group_of_the_tiny_model_has_logprobs_and_its_source(sampled, tmp_path):
    path = written(tmp_path, ROW, {**ROW, "city": "Oslo"})
    with served(weather_app()) as url:
        short = {"max_tokens": 4, "max_turns": 2, "describe_tools": True}
        groups = await sampled(adapter.nemo_gym, env_id=url, dataset_path=path, **short)
    source = groups[0]["metadata"]["source"]
    assert source["env_id"] == url and source["package"] == "nemo-gym"


async def test_the_server_runs_the_tools_and_verifies_the_whole_response():
    app = weather_app()
    reward, model = await score([call(), "Cold."], app)
    assert reward.score == 1.0 and reward.metrics == {"calls": 1.0}
    [response] = app.state.seen
    kinds = [item.type for item in response.output]
    assert kinds == ["function_call", "function_call_output", "message"]
    called, answered, said = response.output
    assert called.call_id == answered.call_id and "cold" in answered.output
    assert said.content[0].text == "Cold." and response.status == "completed"
    roles = [message["role"] for message in model.replies[-1].messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert (await score(["No idea."]))[0].score == 0.0


async def test_sessions_at_the_same_time_are_apart():
    app = weather_app()
    with served(app) as url:
        task = {"id": "rome", "row": ROW}
        replies = [[call(), "."], [call("Oslo"), "."]] * 4
        runs = (play(adapter.nemo_gym, task, some, env_id=url) for some in replies)
        found = [reward.score for reward, _ in await asyncio.gather(*runs)]
    assert found == [1.0, 0.0] * 4


async def test_a_wrong_call_is_told_and_a_route_that_is_no_tool_is_not_called():
    reward, model = await score([call(field="town"), call(name="verify"), "Hm."])
    told = [m["content"] for m in model.replies[-1].messages if m["role"] == "tool"]
    assert "Field required" in told[0] and "there is no tool 'verify'" in told[1]
    assert reward.score == 0.0 and reward.metrics == {"calls": 0.0}


@pytest.mark.parametrize(
    ("row", "busy", "message"),
    [
        ({"masked": True}, False, "masked the sample: the judge is away"),
        ({"broken": True}, False, "/verify: 500"),
        ({}, True, "503"),
    ],
)
async def test_a_failure_of_the_server_is_raised_and_never_a_score(row, busy, message):
    with pytest.raises(Exception, match=message):
        await score([call()], weather_app(busy), {**ROW, **row})


def test_no_server_and_rows_that_cannot_be_asked_end_the_run_before_a_rollout(tmp_path):
    good = written(tmp_path, ROW)
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match="no server"):
        adapter.rows(NemoGymConfig(env_id=url, dataset_path=good))
    with served(weather_app()) as url:
        [task] = adapter.rows(NemoGymConfig(env_id=url, dataset_path=good))
        assert task["row"] == ROW
        for wrong, message in (
            ({"responses_create_params": {}}, "row 2: KeyError: 'input'"),
            ({"responses_create_params": {"input": [{"type": "computer"}]}}, "not served"),
            (
                {"responses_create_params": {"input": "?", "tools": [{"type": "mcp"}]}},
                "tools of type mcp",
            ),
        ):
            with pytest.raises(ConfigError, match=message):
                path = written(tmp_path, ROW, wrong)
                adapter.rows(NemoGymConfig(env_id=url, dataset_path=path))
    with served(FastAPI()) as url:
        with pytest.raises(ConfigError, match="it has no /seed_session and no /verify"):
            adapter.rows(NemoGymConfig(env_id=url, dataset_path=good))
