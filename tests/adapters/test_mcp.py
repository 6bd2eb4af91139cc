"""Our MCP servers, and servers of another author, with the installed major of the package."""

from __future__ import annotations

import asyncio
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from atroposlib.adapters.mcp import McpConfig, connect_tools, mcp, plain_names, text_of
from atroposlib.envs.rollout.causes import OnlyFailures
from atroposlib.errors import ConfigError, RolloutError
from atroposlib.testing.fake_inference import FakeInference

PACKAGE = "mcp"
OURS = [sys.executable, str(Path(__file__).with_name("toys") / "mcp_server.py")]
TASK = {"id": "17+23", "question": "What is 17 + 23?", "answer": "40"}
ONCE = {"group_size": 2, "max_num_workers": 1, "max_tokens": 200, "describe_tools": True}


def called(name, arguments):
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


class Shared(McpConfig):
    servers_shared: int = 1  # starting one takes a second or more


@mcp([TASK], OURS, config=Shared, **ONCE)
async def sums(task, reply):
    """The answer, with any number of calls."""
    return float(reply == task["answer"])


# --- the server ---------------------------------------------------------------------


async def test_tools_have_plain_names_schemas_and_results_as_text(capfd):
    async with connect_tools(OURS) as tools:
        by_name = {tool.name: tool for tool in tools}
        assert list(by_name) == ["add_up", "add_up_2", "draw", "fail", "leave"]
        add = by_name["add_up"]
        assert add.description == "The sum of two numbers."
        assert add.schema["required"] == ["a", "b"]
        assert await add.call({"a": 17, "b": 23}) == "40"
        assert await by_name["add_up_2"].call({"a": 1}) == "1"
        assert await by_name["draw"].call({}) == "[image]"
        assert (await add.call({"a": "x"})).lower().startswith("error")
        assert "fail" in await by_name["fail"].call({})
        add.remote_name = "subtract"
        assert "Unknown tool: subtract" in await add.call({})
    assert "a line of the log" not in capfd.readouterr().err


async def test_a_server_of_another_author_is_used(tmp_path):
    if find_spec("mcp_server_time") is not None:
        async with connect_tools([sys.executable, "-m", "mcp_server_time"]) as tools:
            (now,) = [tool for tool in tools if tool.name == "get_current_time"]
            assert "Europe/Oslo" in await now.call({"timezone": "Europe/Oslo"})
            assert "error" in (await now.call({"timezone": "Mars"})).lower()
        return
    program = "import mcp_server_sqlite as s; s.main()"
    pytest.importorskip("mcp_server_sqlite", reason="make adapters installs it")
    command = [sys.executable, "-c", program, "--db-path", str(tmp_path / "db.sqlite")]
    async with connect_tools(command) as tools:
        by_name = {tool.name: tool for tool in tools}
        await by_name["create_table"].call({"query": "CREATE TABLE t (n INTEGER)"})
        await by_name["write_query"].call({"query": "INSERT INTO t VALUES (41)"})
        assert "42" in await by_name["read_query"].call({"query": "SELECT n + 1 FROM t"})
        assert "error" in (await by_name["read_query"].call({"query": "SELECT"})).lower()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["/no/such/server"], "FileNotFoundError"),
        ([sys.executable, "-c", "import sys; sys.exit('bad settings')"], "bad settings"),
    ],
)
async def test_a_command_that_starts_no_server_is_named_with_its_stderr(command, reason):
    with pytest.raises(ConfigError, match=rf"(?s)no MCP server by .*{reason}"):
        async with connect_tools(command):
            pass
    with pytest.raises(ConfigError, match="no MCP server by"):
        env = mcp([TASK], command)(sums.rollout)  # in setup, before any rollout
        await asyncio.wait_for(_set_up(env), 60)


async def _set_up(env_cls):
    from atroposlib.envs.base import APIServerConfig

    server = APIServerConfig(base_url="http://127.0.0.1:9/v1", server_type="openai")
    await env_cls(env_cls.env_config_cls(use_wandb=False), [server]).setup()


async def test_a_server_that_does_not_answer_in_time_is_an_error():
    silent = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with pytest.raises(ConfigError, match="TimeoutError"):
        async with connect_tools(silent, timeout_s=0.5):
            pass


async def test_a_server_ends_with_its_block_and_errors_of_the_block_pass_unchanged():
    async def pid_of(tools):
        return tools[0].session

    with pytest.raises(KeyError, match="mine"):
        async with connect_tools(OURS):
            raise KeyError("mine")

    async def forever(started):
        async with connect_tools(OURS) as tools:
            started.set_result(tools)
            await asyncio.Event().wait()

    started = asyncio.get_running_loop().create_future()
    rollout = asyncio.ensure_future(forever(started))
    tools = await started
    rollout.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rollout
    with pytest.raises(Exception, match="(?i)closed|^$"):
        await tools[0].call({"a": 1, "b": 2})


async def test_the_environment_variables_of_a_server_are_those_given(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_TRAINER", "1")
    shown = "import os, sys; sys.exit(' '.join(sorted(os.environ)))"
    with pytest.raises(ConfigError) as raised:
        async with connect_tools([sys.executable, "-c", shown], env={"FOR_SERVER": "1"}):
            pass
    assert "FOR_SERVER" in str(raised.value)
    assert "SECRET_OF_THE_TRAINER" not in str(raised.value).partition("ends with")[2]


# --- rollouts -----------------------------------------------------------------------


async def test_the_model_calls_the_tools_of_a_server_until_it_answers(
    make_env, groups_made, trained_text
):
    call = called("add_up", '{"a": 17, "b": 23}')

    def reply(prompt, i):
        return "40" if "<|tool|>40" in prompt else call

    with FakeInference(reply=reply).running() as url:
        env = make_env(sums, url)
        (group,) = await groups_made(env, 1)
    assert group["scores"] == [1.0, 1.0]
    assert trained_text(env, group, 0) == f"{call}<|end|>40<|end|>"
    assert "The sum of two numbers." in group["messages"][0][0]["content"]


@pytest.mark.parametrize(("shared", "counts"), [(0, ["1", "1"]), (1, ["1", "2"])])
async def test_a_server_with_state_is_one_per_rollout_unless_it_is_shared(
    make_env, groups_made, shared, counts
):
    @mcp([TASK], OURS, **ONCE)
    async def counted(task, reply):
        return float(reply.messages[-2]["content"])

    def reply(prompt, i):
        return "done" if "<|tool|>" in prompt else called("add_up_2", '{"a": 1}')

    with FakeInference(reply=reply).running() as url:
        (group,) = await groups_made(make_env(counted, url, servers_shared=shared), 1)
    assert sorted(group["scores"]) == [float(count) for count in counts]


async def test_a_model_that_keeps_calling_is_stopped_and_errors_are_given_to_it(
    make_env, groups_made
):
    @mcp([TASK], OURS, config=Shared, **ONCE)
    async def endless(task, reply):
        told = [m["content"].lower() for m in reply.messages if m["role"] == "tool"]
        return float(sum("error" in text for text in told))

    with FakeInference(reply=lambda prompt, i: called("fail", "{}")).running() as url:
        (group,) = await groups_made(make_env(endless, url, max_turns=3), 1)
    assert group["scores"] == [2.0, 2.0]


async def test_a_server_that_dies_fails_the_rollout_and_is_no_score(make_env):
    with FakeInference(reply=lambda prompt, i: called("leave", "{}")).running() as url:
        env = make_env(sums, url)
        await env.setup()
        with pytest.raises(RolloutError, match="(?i)closed"):
            await env.rollouts.train(await env.get_next_item())
        await env.close()


async def test_one_mistake_of_the_score_ends_the_run(make_env):
    @mcp([TASK, {**TASK, "id": "b"}, {**TASK, "id": "c"}], OURS, config=Shared, **ONCE)
    async def broken(task, reply):
        return float(reply == task["anwser"])

    with FakeInference(reply=lambda prompt, i: "40").running() as url:
        with pytest.raises(OnlyFailures, match=r"test_mcp.py:\d+: KeyError: 'anwser'"):
            await make_env(broken, url, eval_fraction=0.0).process_manager()


async def test_the_example_of_the_page_runs(make_env, groups_made, tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "adapters.md"
    (source,) = re.findall(
        r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
    )
    (tmp_path / "server.py").write_text(Path(OURS[1]).read_text())
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    exec(compile(source, str(page), "exec"), names)
    with FakeInference(reply=lambda prompt, i: "40 or 41").running() as url:
        env = make_env(names["sums"], url, group_size=1, max_turns=1, describe_tools=True)
        await groups_made(env, 1)


@pytest.mark.slow
async def test_a_tiny_model_answers_a_group(sampled):
    groups = await sampled(sums, **{"max_tokens": 16})
    assert groups[0]["scores"] == [0.0] * 4


# --- pure ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "audio"}]}, "a\n[audio]"),
        ({"content": [], "structuredContent": {"n": 1}}, '{"n": 1}'),
        ({"content": [{"type": "text", "text": "no"}], "isError": True}, "error: no"),
        ({"content": [{"type": "text", "text": "Error: no"}], "isError": True}, "Error: no"),
        ({"content": []}, ""),
    ],
)
def test_a_result_is_text(result, text):
    assert text_of(result) == text


def test_a_result_that_asks_for_input_is_an_error():
    with pytest.raises(ValueError, match="no content"):
        text_of({"resultType": "input_required", "inputRequests": {}})


def test_names_of_functions_have_few_characters_and_differ():
    assert plain_names(["a.b", "a/b", "a_b", "x" * 99]) == ["a_b", "a_b_2", "a_b_3", "x" * 64]


async def test_the_tools_of_all_pages_are_listed():
    from mcp.types import ListToolsResult

    from atroposlib.adapters.mcp import _tools

    asked = []

    async def list_tools(params):
        asked.append(params.cursor)
        tool = {"name": f"t{len(asked)}", "inputSchema": {"type": "object"}}
        more = {"nextCursor": "2"} if len(asked) == 1 else {}
        return ListToolsResult.model_validate({"tools": [tool], **more})

    tools = await _tools(SimpleNamespace(list_tools=list_tools), 1.0)
    assert [tool.name for tool in tools] == ["t1", "t2"] and asked == [None, "2"]
