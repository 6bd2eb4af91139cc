"""Tools of an MCP server (Model Context Protocol) for the model, scored by a function.

    @mcp("questions.jsonl", [sys.executable, "server.py"], max_tokens=200)
    async def files(task, reply):
        return float(task["answer"] in reply)  # reply.messages is the transcript

    async with connected([sys.executable, "server.py"]) as tools:  # in any rollout
        reply = await model.use_tools(task["question"], tools=tools)

Servers of the majors 1 and 2 of the package mcp, over stdio. Needs: pip install
'atropos-rl[mcp]'.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shlex
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from atroposlib.adapters import import_package
from atroposlib.envs.function_env import FunctionEnv, FunctionEnvConfig, Model, environment
from atroposlib.envs.function_env.rewards import call_user
from atroposlib.errors import ConfigError, RolloutError, boundary
from atroposlib.utils.gathering import in_one_task

MAX_NAME_CHARS = 64
STDERR_BYTES = 2000  # limit of the server's stderr in the error, if it does not start


class McpConfig(FunctionEnvConfig):
    """Settings of the servers and of the turns."""

    system_prompt: str = Field(default="", description="before the question; empty: none")
    max_turns: int = Field(default=8, ge=1, description="most replies of a rollout")
    servers_shared: int = Field(
        default=0,
        ge=0,
        description="servers shared by all rollouts, if they keep no state; 0: one per rollout",
    )
    server_timeout: float = Field(
        default=60.0, gt=0, description="seconds until a server has started, or has answered"
    )


@dataclass(eq=False)
class McpTool:
    """A tool of a server, as ``model.use_tools`` takes it."""

    name: str  # name that the model writes: letters, digits, _ and -
    description: str
    schema: Mapping[str, Any]
    remote_name: str
    session: Any
    timeout_s: float

    async def call(self, arguments: dict[str, Any]) -> str:
        """Text of the result, also of an error that the server reports.

        Raises the errors of the package if the server does not answer, or asks for more.
        """
        calling = self.session.call_tool(self.remote_name, arguments)
        result = await asyncio.wait_for(calling, self.timeout_s)
        return text_of(result.model_dump(by_alias=True, mode="json"))


def text_of(result: Mapping[str, Any]) -> str:
    """Text of a ``CallToolResult`` on the wire. A part without text becomes its type: [image]."""
    if "content" not in result:
        raise ValueError(f"the server returned no content: {sorted(result)}")
    parts = [part.get("text") or f"[{part['type']}]" for part in result["content"]]
    if not parts and result.get("structuredContent") is not None:
        return json.dumps(result["structuredContent"], ensure_ascii=False)
    text = "\n".join(parts)
    failed = result.get("isError") and not text.lower().startswith("error")
    return f"error: {text}" if failed else text


def plain_names(names: Sequence[str]) -> list[str]:
    """Names in the characters of a function's name, all different."""
    given_names: list[str] = []
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_NAME_CHARS]
        free = (f"{plain[: MAX_NAME_CHARS - 4]}_{n}" for n in itertools.count(2))
        given_names.append(
            plain
            if plain not in given_names
            else next(n for n in free if n not in given_names)
        )
    return given_names


@asynccontextmanager
async def connect_tools(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout_s: float = 60.0,
) -> AsyncIterator[list[McpTool]]:
    """The tools of a server that ``command`` starts; it ends with the block.

    Raises ConfigError: the package is missing, or no server started within ``timeout_s``; with
    the end of its stderr.
    """
    import_package("mcp", "mcp")
    async with AsyncExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile("w+b"))
        # Task groups of the package would wrap exceptions of the block.
        opening = in_one_task(_session(command, env, cwd, errors, timeout_s))
        try:
            with boundary("mcp", None, "start"):
                tools = await stack.enter_async_context(opening)
        except RolloutError as error:
            cause: Any = error.__cause__
            while getattr(cause, "exceptions", None):  # a group with a single exception
                cause = cause.exceptions[0]
            errors.seek(0)
            output = errors.read()[-STDERR_BYTES:].decode(errors="replace").strip()
            raise ConfigError(
                f"no MCP server by {shlex.join(command)!r}: {type(cause).__name__} {cause}"
                + (f"; its stderr ends with:\n{output}" if output else "")
            ) from error
        yield tools


@asynccontextmanager
async def _session(
    command: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | None,
    errors: Any,
    timeout_s: float,
) -> AsyncIterator[list[McpTool]]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    options = {"env": dict(env) if env else None, "cwd": cwd}
    server = StdioServerParameters(command=command[0], args=list(command[1:]), **options)
    async with (
        stdio_client(server, errlog=errors) as (read, write),
        ClientSession(read, write) as session,
    ):
        await asyncio.wait_for(session.initialize(), timeout_s)
        yield await asyncio.wait_for(_tools(session, timeout_s), timeout_s)


async def _tools(session: Any, timeout_s: float) -> list[McpTool]:
    from mcp.types import PaginatedRequestParams

    listed: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        page = page.model_dump(by_alias=True, mode="json")  # alike in both majors
        listed += page["tools"]
        if not (cursor := page.get("nextCursor")):
            break
    names = plain_names([tool["name"] for tool in listed])
    return [
        McpTool(
            name,
            tool.get("description") or "",
            tool["inputSchema"],
            tool["name"],
            session,
            timeout_s,
        )
        for name, tool in zip(names, listed)
    ]


def mcp(
    dataset: Any,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    config: type[McpConfig] = McpConfig,
    **given: Any,
) -> Callable[[Callable[..., Any]], type[FunctionEnv]]:
    """Make a function ``(task, reply)`` the reward of an environment with a server's tools.

    A task is a question, or a mapping with ``question``. ``env`` is added to the few variables
    that a server gets; ``given`` are further arguments of ``@environment``.
    """

    def server(config: McpConfig) -> Any:
        return connect_tools(command, env=env, cwd=cwd, timeout_s=config.server_timeout)

    @asynccontextmanager
    async def lifespan(config: McpConfig) -> AsyncIterator[Iterator[list[McpTool]] | None]:
        async with AsyncExitStack() as stack:
            # Started even without shared servers: a wrong command fails before the first
            # rollout.
            opening = [server(config) for _ in range(config.servers_shared or 1)]
            tools = [await stack.enter_async_context(session) for session in opening]
            if config.servers_shared:
                yield itertools.cycle(tools)
                return
        yield None

    def decorate(score: Callable[..., Any]) -> type[FunctionEnv]:
        async def rollout(task: Any, model: Model, config: McpConfig, resources: Any) -> Any:
            question = task if isinstance(task, str) else task["question"]
            system = [{"role": "system", "content": config.system_prompt}]
            messages = [*system, {"role": "user", "content": question}]
            async with AsyncExitStack() as stack:
                if resources is None:
                    tools = await stack.enter_async_context(server(config))
                else:
                    tools = next(resources)
                reply = await model.use_tools(
                    messages[not config.system_prompt :],
                    tools=tools,
                    max_turns=config.max_turns,
                )
            return await call_user(score, task, reply, config=config)

        rollout.__module__, rollout.__doc__ = score.__module__, score.__doc__
        options = {"name": score.__name__, **given}
        return environment(dataset, config=config, lifespan=lifespan, **options)(rollout)

    return decorate
