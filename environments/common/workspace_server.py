"""MCP server of a folder over stdio: text files, an SQLite database, a calculator.

    python -m atroposlib.environments.common.workspace_server FOLDER

The server starts in a tenth of a second, because it does without the package mcp: each rollout
has a server.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from atroposlib.environments.common.bounded_sql import READS, WRITES, bound_database, rows_of
from atroposlib.environments.common.calculation import calculate_text

DATABASE = "data.sqlite"
PROTOCOL = "2025-06-18"  # version of MCP
MAX_FILES, MAX_FILE_CHARS, MAX_PAGES = 50, 10_000, 250  # a page of the database has 4 kB
_NAME = re.compile(r"\w[\w-]{0,40}\.txt", re.ASCII)
NO_METHOD = -32601  # error code of JSON-RPC


def toolbox(folder: Path) -> list[Callable[..., str]]:
    """Tools on a folder; their parameters are texts. Raise OSError, ValueError, apsw.Error."""
    database = apsw.Connection(str(folder / DATABASE))
    database.execute(f"PRAGMA max_page_count = {MAX_PAGES}")
    bound_database(database, (*READS, *WRITES))

    def place(name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError("a name has letters, digits, _ and -, and ends with .txt")
        return folder / name

    def list_files() -> str:
        """List the names of the files."""
        return "\n".join(sorted(path.name for path in folder.glob("*.txt"))) or "no files"

    def read_file(name: str) -> str:
        """Show the text of a file."""
        return place(name).read_text(encoding="utf-8")

    def write_file(name: str, text: str) -> str:
        """Make a file, or replace its text."""
        path = place(name)
        if len(text) > MAX_FILE_CHARS or len(list(folder.glob("*.txt"))) >= MAX_FILES:
            raise ValueError("the text is too long, or there are too many files")
        path.write_text(text, encoding="utf-8")
        return "written"

    def delete_file(name: str) -> str:
        """Delete a file."""
        place(name).unlink()
        return "deleted"

    def query(sql: str) -> str:
        """Run one statement of SQL on the database: SELECT, INSERT, UPDATE or DELETE."""
        before = database.total_changes()
        rows = rows_of(database, sql)
        changed = database.total_changes() - before
        return (
            "\n".join(json.dumps(row, default=repr) for row in rows)
            or f"no rows; changed: {changed}"
        )

    def calculate(expression: str) -> str:
        """Calculate with whole numbers: + - * // % and parentheses."""
        return calculate_text(expression)

    return [list_files, read_file, write_file, delete_file, query, calculate]


def describe_tool(tool: Callable[..., str]) -> dict[str, Any]:
    """A tool as MCP lists it."""
    names = list(inspect.signature(tool).parameters)
    properties = {name: {"type": "string"} for name in names}
    schema = {"type": "object", "properties": properties, "required": names}
    return {"name": tool.__name__, "description": tool.__doc__, "inputSchema": schema}


def call_tool(
    tools: dict[str, Callable[..., str]], name: str, arguments: dict[str, Any]
) -> Any:
    """Result of a call, or the error that is its text."""
    try:
        if name not in tools:
            raise ValueError(f"Unknown tool: {name}")
        wanted = set(inspect.signature(tools[name]).parameters)
        if set(arguments) != wanted or not all(
            isinstance(value, str) for value in arguments.values()
        ):
            raise ValueError(f"the arguments are {sorted(wanted)}, as texts")
        text, failed = tools[name](**arguments), False
    except (OSError, ValueError, apsw.Error) as error:
        text, failed = f"error: {getattr(error, 'strerror', None) or error}", True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def answer_request(tools: dict[str, Callable[..., str]], method: str, params: Any) -> Any:
    """Result of a request of MCP; None for a method that this server lacks."""
    if method == "initialize":
        about = {"name": "workspace", "version": "1"}
        capabilities: dict[str, Any] = {"tools": {}}
        return {
            "protocolVersion": PROTOCOL,
            "capabilities": capabilities,
            "serverInfo": about,
        }
    if method == "tools/list":
        return {"tools": [describe_tool(tool) for tool in tools.values()]}
    if method == "tools/call":
        return call_tool(tools, params["name"], params.get("arguments") or {})
    return {} if method == "ping" else None


def main(folder: str) -> None:
    tools = {tool.__name__: tool for tool in toolbox(Path(folder))}
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request or "method" not in request:
            continue  # a notification
        result = answer_request(tools, request["method"], request.get("params"))
        reply: dict[str, Any] = {"result": result}
        if result is None:
            reply = {"error": {"code": NO_METHOD, "message": "no such method"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
