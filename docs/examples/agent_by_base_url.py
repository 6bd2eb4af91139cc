"""An agent that knows only the openai package, trained through a base_url.

    python docs/examples/agent_by_base_url.py --base-url http://localhost:9001/v1 --model DIR

Samples one group: the agent answers one question several times, each run in a session of its
own, and the sessions' rows become what a trainer takes. ``docs/agents.md`` explains it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from openai import AsyncOpenAI

from atroposlib.envs.rollout.groups import ScoredDataGroup, from_nodes
from atroposlib.generation import (
    APIServerConfig,
    RunningProxy,
    ServerManager,
    load_tokenizer,
    serving_proxy,
)

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two integers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


async def agent(question: str, base_url: str, api_key: str) -> str:
    """Anybody's agent: nothing in it knows that it is being trained."""
    messages: list[Any] = [{"role": "user", "content": question}]
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        for _ in range(4):
            reply = await client.chat.completions.create(
                model="gpt-5", messages=messages, tools=[ADD], max_tokens=64
            )
            message = reply.choices[0].message
            if not message.tool_calls:
                return message.content or ""
            messages.append(message)
            for call in message.tool_calls:
                given = json.loads(call.function.arguments)
                result = {"role": "tool", "tool_call_id": call.id}
                total = given.get("a", 0) + given.get("b", 0)
                messages.append({**result, "content": str(total)})
    return ""


async def group_of(
    proxy: RunningProxy, question: str, right: str, size: int
) -> ScoredDataGroup:
    """One scored group: ``size`` runs of the agent, scored by their last words."""

    async def run() -> list[Any]:
        async with await proxy.open_session(sampling={"temperature": 1.0}) as session:
            answer = await agent(question, session.base_url, session.api_key)
            session.reward(1.0 if right in answer else 0.0)
            return session.rows()

    rows = [row for own in await asyncio.gather(*(run() for _ in range(size))) for row in own]
    return from_nodes(rows, [row.reward for row in rows])


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base-url", required=True, help="of an inference server")
    parser.add_argument("--model", required=True, help="its model: a directory or a name")
    parser.add_argument("--size", type=int, default=4, help="runs in the group")
    options = parser.parse_args()
    config = APIServerConfig(
        base_url=options.base_url, model_name=options.model, server_type="vllm"
    )
    manager = ServerManager([config])
    async with serving_proxy(manager, load_tokenizer(config), options.model) as proxy:
        group = await group_of(proxy, "What is 17 + 25? Use the tool.", "42", options.size)
    await manager.close()
    for tokens, masks, score in zip(group["tokens"], group["masks"], group["scores"]):
        trained = sum(mask != -100 for mask in masks)
        print(f"{len(tokens)} tokens, {trained} of them trained, score {score}")


if __name__ == "__main__":
    asyncio.run(main())
