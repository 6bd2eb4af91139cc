"""Harness of verifiers 0.4 that chats in this process, with the tools of a task.

Harnesses of the package run a script by uv, which installs packages for each rollout.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

from atroposlib.envs.function_env.rollout_model import client_of

__all__ = ["ChatHarness"]


class ChatHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """Messages of a task, and the replies of the model until it calls no tool."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        async with AsyncExitStack() as stack:
            client: Any = await stack.enter_async_context(
                client_of(endpoint, secret, timeout=None)
            )
            timeout_s = self.config.tool_timeout
            servers = {
                name: {"url": url, "timeout": timeout_s} for name, url in mcp_urls.items()
            }
            tools, places, opened = await connect_mcp({"mcpServers": servers}, stack)
            offered = {"tools": tools} if tools else {}
            while True:
                completion = await client.chat.completions.create(
                    model=ctx.model, messages=messages, **offered
                )
                reply = completion.choices[0].message
                messages.append(reply.model_dump(exclude_none=True))
                if not reply.tool_calls:
                    return vf.ProgramResult(0, "", "")
                for call in reply.tool_calls:
                    content = await answer(call.function, places, opened)
                    about = {"tool_call_id": call.id, "name": call.function.name}
                    messages.append({"role": "tool", "content": content, **about})


async def answer(called: Any, places: Any, opened: Any) -> Any:
    """Result of a call; for a wrong call an error text, since the model can correct the call."""
    if called.name not in places:
        return f"error: there is no tool {called.name!r}, only {sorted(places)}"
    try:
        arguments = json.loads(called.arguments or "{}")
    except ValueError as error:
        return f"error: the arguments are no JSON: {error}"
    if not isinstance(arguments, dict):
        return "error: the arguments are not a JSON object"
    return await call_mcp(opened, places, called.name, arguments)
