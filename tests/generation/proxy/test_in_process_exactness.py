"""Every row that the proxy exports, derived once more from the raw bytes on the wire.

Sessions of four APIs run at once against the real local inference server, while the weight
version changes and requests are aborted and resumed. A tap writes down each /generate request
and answer; from those bytes alone the rows are made again, in another way, and compared.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from atroposlib.envs.rollout.groups import from_nodes
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.proxy.in_process import AgentSession, serving_proxy
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.wire import ScoredData
from atroposlib.wire.columns import from_group
from tests.generation.proxy.proxy_kit import ADD, tool_tokenizer, write_tool_model
from tests.serving import served

SESSIONS = int(os.environ.get("PROXY_SESSIONS", "8"))
TURNS = int(os.environ.get("PROXY_TURNS", "4"))
NEW_TOKENS = 14

pytestmark = pytest.mark.slow


class Tap:
    """ASGI middleware that keeps the raw bytes of every generation, answered ones in order."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.seen: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/generate":
            await self.app(scope, receive, send)
            return
        asked, answered = bytearray(), bytearray()

        async def tapped_receive() -> Any:
            message = await receive()
            asked.extend(message.get("body", b""))
            return message

        async def tapped_send(message: Any) -> None:
            answered.extend(message.get("body", b""))
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self.seen.append((bytes(asked), bytes(answered)))
            await send(message)

        await self.app(scope, tapped_receive, tapped_send)


def samples_on_the_wire(seen: list[tuple[bytes, bytes]]) -> list[dict[str, list[Any]]]:
    """Each sampled continuation: its prompt, and tokens with logprob and version."""
    found = []
    for asked, answered in seen:
        request, answer = json.loads(asked), json.loads(answered)
        if "token_ids" not in answer:
            continue  # the empty body of the route probe
        for i, tokens in enumerate(answer["token_ids"]):
            versions = [None] * len(tokens)
            for span in answer["weight_versions"][i]:
                for k in range(span["start"], span["end"]):
                    versions[k] = span["version"]
            logprobs = [
                entry[0][str(t)]
                for entry, t in zip(answer["logprobs"][i], tokens, strict=True)
            ]
            if tokens:
                found.append(
                    {
                        "prompt": request["prompt"]["prompt_token_ids"],
                        "tokens": tokens,
                        "logprobs": logprobs,
                        "versions": versions,
                    }
                )
    return found


def rows_of_samples(samples: list[dict[str, list[Any]]]) -> list[dict[str, list[Any]]]:
    """Turn after turn: a sample is appended to the row that its prompt starts with.

    The conversations here are linear, so each row is continued at most once per sample.
    """
    rows: list[dict[str, list[Any]]] = []
    for sample in samples:
        prompt = sample["prompt"]
        fitting = [row for row in rows if prompt[: len(row["tokens"])] == row["tokens"]]
        row = max(fitting, key=lambda one: len(one["tokens"]), default=None)
        if row is None:
            row = {"tokens": [], "masked_tokens": [], "logprobs": [], "versions": []}
            rows.append(row)
        given = prompt[len(row["tokens"]) :]
        row["tokens"] += given + sample["tokens"]
        row["masked_tokens"] += [-100] * len(given) + sample["tokens"]
        row["logprobs"] += [1.0] * len(given) + sample["logprobs"]
        row["versions"] += [-1] * len(given) + sample["versions"]
    return rows


def fingerprint(row: Any) -> str:
    names = ("tokens", "masked_tokens", "logprobs", "versions")
    read = row.__getitem__ if isinstance(row, dict) else lambda name: getattr(row, name)
    return json.dumps([read(name) for name in names])


@pytest.fixture(scope="module")
def tapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Tap, Any]]:
    import torch

    from atroposlib.inference.engine.core import EngineLimits
    from atroposlib.inference.engine.engine import Engine
    from atroposlib.inference.engine.served_model import load_model
    from atroposlib.inference.http.app import create_app

    torch.set_num_threads(1)
    directory: Path = write_tool_model(tmp_path_factory.mktemp("tool_model"))
    model = load_model(str(directory), name="tools")
    engine = Engine(model, EngineLimits(), seed=3, weight_version=0, num_threads=1)
    engine.start()
    tap = Tap(create_app(engine))
    with served(tap) as url:
        yield url, tap, engine
    engine.close()


# --- four agents without any import of the project -----------------------------------------


def sum_of(given: dict[str, Any]) -> str:
    return str(given.get("a", 0) + given.get("b", 0))  # a random model may leave them out


async def chat_agent(session: AgentSession, first: str, stream: bool) -> int:
    calls = 0
    messages: list[Any] = [{"role": "user", "content": first}]
    async with openai.AsyncOpenAI(
        base_url=session.base_url, api_key=session.api_key, max_retries=0
    ) as client:
        for turn in range(TURNS):
            asked = {"model": "any", "messages": messages, "max_tokens": NEW_TOKENS}
            if stream:
                message = await streamed_message(client, asked)
            else:
                reply = await client.chat.completions.create(**asked, tools=[ADD])
                message = reply.choices[0].message.model_dump(exclude_none=True)
            messages.append(message)
            for call in message.get("tool_calls", []):
                calls += 1
                result = sum_of(json.loads(call["function"]["arguments"]))
                messages.append(
                    {"role": "tool", "tool_call_id": call["id"], "content": result}
                )
            if "tool_calls" not in message:
                messages.append({"role": "user", "content": f"turn {turn}"})
    return calls


async def streamed_message(
    client: openai.AsyncOpenAI, asked: dict[str, Any]
) -> dict[str, Any]:
    """The deltas of a stream put together again."""
    content: str = ""
    calls: list[dict[str, Any]] = []
    stream = await client.chat.completions.create(**asked, tools=[ADD], stream=True)
    async for chunk in stream:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for part in delta.tool_calls or []:
            if part.id is not None:
                opened = {"name": part.function.name, "arguments": ""}
                calls.append({"id": part.id, "type": "function", "function": opened})
            calls[part.index]["function"]["arguments"] += part.function.arguments or ""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    return {**message, "tool_calls": calls} if calls else message


async def responses_agent(session: AgentSession, first: str) -> int:
    calls, previous = 0, None
    items: Any = first
    tool = {"type": "function", **ADD["function"]}
    async with openai.AsyncOpenAI(
        base_url=session.base_url, api_key=session.api_key, max_retries=0
    ) as client:
        for turn in range(TURNS):
            reply = await client.responses.create(
                model="any",
                input=items,
                tools=[tool],
                max_output_tokens=NEW_TOKENS,
                previous_response_id=previous,
            )
            previous = reply.id
            items = [
                {
                    "type": "function_call_output",
                    "call_id": item.call_id,
                    "output": sum_of(json.loads(item.arguments)),
                }
                for item in reply.output
                if item.type == "function_call"
            ]
            calls += len(items)
            items = items or [{"role": "user", "content": f"turn {turn}"}]
    return calls


async def messages_agent(session: AgentSession, first: str) -> int:
    calls = 0
    tool = {"name": "add", "input_schema": ADD["function"]["parameters"]}
    messages: list[Any] = [{"role": "user", "content": first}]
    headers = {"x-api-key": session.api_key, "anthropic-version": "2023-06-01"}
    async with httpx.AsyncClient(base_url=session.url, headers=headers, timeout=300) as client:
        for turn in range(TURNS):
            body = {"model": "any", "max_tokens": NEW_TOKENS, "tools": [tool]}
            reply = await client.post("/v1/messages", json={**body, "messages": messages})
            blocks = reply.raise_for_status().json()["content"]
            messages.append({"role": "assistant", "content": blocks})
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": block["id"],
                    "content": sum_of(block["input"]),
                }
                for block in blocks
                if block["type"] == "tool_use"
            ]
            calls += len(results)
            content = results or [{"type": "text", "text": f"turn {turn}"}]
            messages.append({"role": "user", "content": content})
    return calls


async def run_agent(i: int, session: AgentSession) -> int:
    first = f"session {i} <"
    if i % 4 == 2:
        return await responses_agent(session, first)
    if i % 4 == 3:
        return await messages_agent(session, first)
    return await chat_agent(session, first, stream=i % 4 == 1)


async def change_weights(url: str, done: asyncio.Event, versions: list[int]) -> None:
    """New versions, and aborts in the middle of generations, until the agents are done."""
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        while not done.is_set():
            version = len(versions) + 1
            await client.post("/pause", params={"mode": "abort"})
            await client.post("/update_weight_version", json={"weight_version": version})
            await client.post("/resume")
            versions.append(version)
            try:
                await asyncio.wait_for(done.wait(), 0.3)
            except asyncio.TimeoutError:
                continue


async def run_until_weights_changed(i: int, session: AgentSession, versions: list[int]) -> int:
    """Run the agent, again if it was faster than three changes of the weights."""
    calls = await run_agent(i, session)
    while len(versions) < 3:
        calls += await run_agent(i, session)
    return calls


async def test_every_exported_row_equals_the_row_derived_from_the_raw_bytes(tapped):
    url, tap, _ = tapped
    config = APIServerConfig(base_url=f"{url}/v1", server_type="vllm", model_name="tools")
    manager = ServerManager([config])
    done, versions = asyncio.Event(), list[int]()
    async with serving_proxy(manager, tool_tokenizer(), "tools") as proxy:
        sessions = [await proxy.open_session() for _ in range(SESSIONS)]
        changing = asyncio.create_task(change_weights(url, done, versions))
        try:
            calls = await asyncio.gather(
                *(run_until_weights_changed(i, s, versions) for i, s in enumerate(sessions))
            )
        finally:
            done.set()
            await changing
        for i, session in enumerate(sessions):
            session.reward(float(i % 2))
        exported = [session.rows() for session in sessions]
    await manager.close()

    rows = [row for own in exported for row in own]
    rebuilt = rows_of_samples(samples_on_the_wire(tap.seen))
    assert Counter(map(fingerprint, rows)) == Counter(map(fingerprint, rebuilt))
    sampled = sum(len(s["tokens"]) for s in samples_on_the_wire(tap.seen))
    trained = sum(token != -100 for row in rows for token in row.masked_tokens)
    print(
        f"{SESSIONS} sessions, {sum(len(row.turns) for row in rows)} turns, {len(rows)} rows, "
        f"{sampled} sampled tokens, {sum(calls)} tool calls, {len(versions)} weight versions"
    )
    assert trained == sampled
    assert sum(calls) > 0
    assert len({v for row in rows for v in row.versions}) > 2
    group = from_nodes(rows, [row.reward for row in rows])
    fields = ("tokens", "masks", "scores", "inference_logprobs", "versions")
    from_group(msgspec.convert({name: group[name] for name in fields}, ScoredData))
