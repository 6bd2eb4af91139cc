"""Environments of NeMo Gym: a resources server over HTTP, and rows of its data set.

    atropos env run nemo_gym:http://127.0.0.1:8000 process --env.dataset_path example.jsonl

A rollout is a session of the server, which seeds the session, runs the tools and verifies the
response. The loop of turns runs here, without agents and model servers of NeMo Gym; its
package is not needed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import Field

from atroposlib.adapters import convert_errors
from atroposlib.envs.function_env import FunctionEnvConfig, Model, Reply, Reward, environment
from atroposlib.envs.function_env.data import task_id
from atroposlib.errors import ConfigError, InferenceRefused
from atroposlib.generation.proxy.apis.exchange import plain_messages
from atroposlib.generation.proxy.apis.responses import messages_of
from atroposlib.utils.datasets import load_rows

ASKED = "responses_create_params"  # key of a row: the request of the Responses API
INFRASTRUCTURE = (429, 502, 503, 504)  # answer of a proxy in front of the server
UNUSABLE = (InferenceRefused, KeyError, TypeError, ValueError)  # errors of a row
NEEDED = ("/seed_session", "/verify")


class NemoGymConfig(FunctionEnvConfig):
    """Settings of the server, the rows and the turns."""

    env_id: str = Field(
        default="http://127.0.0.1:8000", description="URL of a resources server"
    )
    dataset_path: str = Field(default="", description="rows with responses_create_params")
    max_turns: int = Field(default=16, ge=1, description="most replies of a rollout")
    server_timeout: float = Field(default=60.0, gt=0, description="seconds of one call")


@dataclass(frozen=True)
class GymTool:
    """A tool of a row, as ``model.use_tools`` takes it: a route of the server."""

    name: str
    description: str
    schema: Mapping[str, Any]
    http: httpx.AsyncClient

    async def call(self, arguments: dict[str, Any]) -> str:
        """Body of the answer, also of a refusal. Raises what httpx raises for a lost server."""
        answer = await self.http.post(f"/{self.name}", json=arguments)
        if answer.status_code in INFRASTRUCTURE:
            answer.raise_for_status()
        return answer.text


def rows(config: NemoGymConfig) -> list[dict[str, Any]]:
    """The tasks. Raises ConfigError: the server is missing, or a row has no usable request."""
    errors = (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError)
    with convert_errors(errors, f"--env.env_id {config.env_id}", "no server"):
        with httpx.Client(timeout=config.server_timeout, trust_env=False) as http:
            answer = http.get(f"{config.env_id.rstrip('/')}/openapi.json").raise_for_status()
        missing = [path for path in NEEDED if path not in answer.json()["paths"]]
    if missing:
        raise ConfigError(
            f"--env.env_id {config.env_id}: it has no {' and no '.join(missing)}"
        )
    # No route has the version of the package, or the name of the server.
    source = {"package": "nemo-gym", "env_id": config.env_id}
    path = config.dataset_path
    tasks = []
    for number, row in enumerate(load_rows(path, "train", path=path, option="dataset_path")):
        with convert_errors(UNUSABLE, f"{path}, row {number + 1}"):
            asked_of(row)
        name = task_id(row)
        tasks.append({"id": name, "row": row, "source": {**source, "row": name}})
    return tasks


def asked_of(row: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Chat messages and tools of a row. Raises InferenceRefused, KeyError or ValueError."""
    request = row[ASKED]
    messages = messages_of(request["input"])
    if request.get("instructions"):
        messages = [{"role": "system", "content": request["instructions"]}, *messages]
    tools = list(request.get("tools") or ())
    if other_types := sorted({tool["type"] for tool in tools} - {"function"}):
        raise ValueError(f"tools of type {other_types[0]} are not served")
    return plain_messages(messages), tools


def response_of(
    request: Mapping[str, Any], messages: Sequence[Any], reply: Reply
) -> dict[str, Any]:
    """The turns after the request as a response of the Responses API."""
    items: list[dict[str, Any]] = []
    for n, message in enumerate(messages):
        text, calls = message.get("content") or "", message.get("tool_calls") or ()
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            items.append({"type": "function_call_output", "call_id": call_id, "output": text})
            continue
        if text or not calls:
            part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
            turn = {"type": "message", "role": "assistant", "content": [part]}
            items.append({"id": f"msg_{n}", "status": "completed", **turn})
        for call in calls:
            about = {"call_id": call["id"], **call["function"], "status": "completed"}
            items.append({"id": f"fc_{call['id']}", "type": "function_call", **about})
    cut = {"reason": "max_output_tokens"} if reply.finish_reason == "length" else None
    return {
        "id": "resp_atropos",
        "object": "response",
        "created_at": int(time.time()),
        "model": "model",
        "status": "incomplete" if cut else "completed",
        "incomplete_details": cut,
        "output": items,
        "parallel_tool_calls": request.get("parallel_tool_calls") is not False,
        "tool_choice": request.get("tool_choice") or "auto",
        "tools": request.get("tools") or [],
    }


async def post_json(http: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> Any:
    answer = await http.post(path, json=body)
    if answer.is_error:
        raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:500]}")
    return answer.json()


@environment(rows, config=NemoGymConfig)
async def nemo_gym(task: Any, model: Model, config: NemoGymConfig) -> Reward:
    """Answer a row, verified by the server."""
    row = task["row"]
    messages, described = asked_of(row)
    # Cookies of the client are the session.
    opening = httpx.AsyncClient(
        base_url=config.env_id, timeout=config.server_timeout, trust_env=False
    )
    async with opening as http:
        seeded = await post_json(http, "/seed_session", row)
        if "mcp" in seeded:  # the model would fail every task without these tools
            raise ConfigError(f"--env.env_id {config.env_id}: tools over MCP are not served")
        tools: list[Any] = [
            GymTool(
                tool["name"], tool.get("description") or "", tool["parameters"] or {}, http
            )
            for tool in described
        ]
        reply = await model.use_tools(messages, tools=tools, max_turns=config.max_turns)
        turns = reply.messages[len(messages) :]
        verdict = await post_json(
            http, "/verify", {**row, "response": response_of(row[ASKED], turns, reply)}
        )
    if verdict.get("mask_sample"):  # the server declares its reward invalid
        why = verdict.get("failure_reason") or verdict.get("failure_kind") or "no reason"
        raise RuntimeError(f"/verify masked the sample: {why}")
    numbers = {**verdict.get("reward_components", {}), **verdict}
    metrics = {
        name: float(value)
        for name, value in numbers.items()
        if isinstance(value, (int, float)) and name not in (*row, "mask_sample", "reward")
    }
    return Reward(verdict["reward"], metrics)


if __name__ == "__main__":
    nemo_gym.cli()
