"""An MCP server with tools for the tests, for both majors of the package."""

import os
import sys

try:
    from mcp.server.fastmcp import FastMCP as Server, Image
except ImportError:  # from version 2 on
    from mcp.server.mcpserver import Image, MCPServer as Server

server = Server("toys")
seen: list[int] = []


@server.tool(name="add.up")
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@server.tool(name="add/up")
def count(a: int) -> int:
    """Number of calls of this server so far."""
    seen.append(a)
    return len(seen)


@server.tool()
def draw() -> Image:
    """A picture."""
    return Image(data=b"png", format="png")


@server.tool()
def fail() -> str:
    raise ValueError("no such file")


@server.tool()
def leave() -> str:
    os._exit(3)


if __name__ == "__main__":
    print("a line of the log", file=sys.stderr)
    server.run()
