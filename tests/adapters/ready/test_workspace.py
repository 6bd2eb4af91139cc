"""The server of a working folder: its tools, their limits, and states that are nearly right."""

from __future__ import annotations

import json
import sys

import pytest

from atroposlib.adapters.mcp import connect_tools
from atroposlib.environments.common import workspace_server
from atroposlib.environments.common.generated import tool_call
from atroposlib.environments.library import workspace as env
from atroposlib.envs.function_env.card import play

PACKAGE = "mcp"
STOCK = [["clock", "kitchen", 40, 7], ["lamp", "tools", 10, 3]]
TASK = {
    "id": "1",
    "question": "?",
    "before": [{"note.txt": "a lamp\n"}, STOCK],
    "after": [{"total.txt": "40"}, [STOCK[0], ["lamp", "tools", 10, 4]]],
}
DONE = [
    tool_call("query", sql="UPDATE stock SET pieces = 4 WHERE name = 'lamp'"),
    tool_call("write_file", name="total.txt", text="40\n"),
    tool_call("delete_file", name="note.txt"),
]


@pytest.fixture
def tools(tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    env.lay_out(tmp_path / "shop", TASK["before"])
    made = workspace_server.toolbox(tmp_path / "shop")
    by_name = {tool.__name__: tool for tool in made}

    def call(name, /, **given):
        result = workspace_server.call_tool(by_name, name, given)
        return result["content"][0]["text"], result["isError"]

    return call


async def test_the_server_lists_its_tools_and_answers_over_stdio(tmp_path):
    env.lay_out(tmp_path, TASK["before"])
    command = [sys.executable, "-m", workspace_server.__name__, str(tmp_path)]
    async with connect_tools(command) as tools:
        by_name = {tool.name: tool for tool in tools}
        assert by_name["write_file"].schema["required"] == ["name", "text"]
        assert by_name["calculate"].description.startswith("Calculate with whole numbers")
        assert await by_name["read_file"].call({"name": "note.txt"}) == "a lamp\n"
        assert await by_name["calculate"].call({"expression": "17 * 23"}) == "391"
        assert await by_name["list_files"].call({}) == "note.txt"
        assert "arguments are" in await by_name["read_file"].call({"path": "note.txt"})
        rows = await by_name["query"].call({"sql": "SELECT name, price FROM stock"})
        assert rows == '["clock", 40]\n["lamp", 10]'


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("read_file", {"name": "../secret.txt"}),
        ("read_file", {"name": "/etc/passwd"}),
        ("read_file", {"name": "data.sqlite"}),
        ("read_file", {"name": "missing.txt"}),
        ("write_file", {"name": "a/b.txt", "text": ""}),
        ("write_file", {"name": "long.txt", "text": "a" * 10_001}),
        ("write_file", {"name": "a.txt", "text": "\ud800"}),
        ("write_file", {"name": "a.txt", "text": 7}),
        ("delete_file", {"name": "data.sqlite"}),
        ("query", {"sql": "ATTACH DATABASE 'other.sqlite' AS other"}),
        ("query", {"sql": "DROP TABLE stock"}),
        ("query", {"sql": "PRAGMA max_page_count = 100000"}),
        ("query", {"sql": "BEGIN"}),
        ("query", {"sql": "SELECT load_extension('x')"}),
        ("query", {"sql": "SELECT count(*) FROM stock a" + ", stock" * 30}),
        ("query", {"sql": "no sql"}),
        ("query", {"sql": "\x00\ud800"}),
        ("shell", {"command": "ls"}),
    ],
)
def test_a_call_beyond_the_folder_or_the_limits_is_an_error_as_text(tools, name, given):
    text, failed = tools(name, **given)
    assert failed and "secret" not in text and "/" not in text.replace("+ - * //", "")


def test_files_are_few_and_the_database_stays_small(tools):
    for number in range(60):
        tools("write_file", name=f"n{number}.txt", text="")
    assert len(tools("list_files")[0].splitlines()) == workspace_server.MAX_FILES
    grow = (
        "INSERT INTO stock SELECT hex(randomblob(900)), hex(randomblob(900)), 1, 1 FROM stock"
    )
    results = [tools("query", sql=grow) for _ in range(20)]
    assert results[-1][1] and "full" in " ".join(text for text, _ in results)


async def test_blobs_and_values_of_no_type_are_rows_too(tools):
    assert tools("query", sql="SELECT x'00', NULL, 1.5") == (
        "[\"b'\\\\x00'\", null, 1.5]",
        False,
    )


async def test_all_of_the_errand_and_nothing_else_scores():
    async def score(*replies):
        return (await play(env.workspace, TASK, [*replies, "Done."]))[0].score

    assert await score(*DONE) == await score(*reversed(DONE)) == 1.0
    assert await score(*DONE[:2]) == await score(*DONE[1:]) == 0.0
    more = tool_call("query", sql="UPDATE stock SET price = 1 WHERE name = 'clock'")
    assert await score(*DONE, more) == 0.0
    assert await score(*DONE, tool_call("write_file", name="more.txt", text="a")) == 0.0
    assert await score(tool_call("query", sql="DELETE FROM stock"), *DONE) == 0.0


def test_a_method_that_the_server_lacks_is_an_error_of_json_rpc(monkeypatch, tmp_path, capsys):
    requests = [{"id": 1, "method": "resources/list"}, {"method": "notifications/initialized"}]
    lines = [json.dumps({"jsonrpc": "2.0", **one}) for one in requests]
    monkeypatch.setattr(sys, "stdin", lines)
    workspace_server.main(str(tmp_path))
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["error"]["code"] == workspace_server.NO_METHOD


@pytest.mark.slow
async def test_a_tiny_model_answers_a_group(sampled):
    groups = await sampled(env.workspace, tasks=4, max_tokens=16)
    assert groups[0]["scores"] == [0.0] * 4
