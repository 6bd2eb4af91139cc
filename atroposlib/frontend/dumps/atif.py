"""Trajectories in the Agent Trajectory Interchange Format (ATIF, versions 1): a JSON document.

    schema_version "ATIF-v1.x", session_id, agent {name, version, model_name}, final_metrics
    steps: source (system, user, agent), message, reasoning_content, tool_calls
           [{tool_call_id, function_name, arguments}], observation {results [{content}]},
           metrics {prompt_token_ids, completion_token_ids, logprobs}

The format has no reward and no group. A trajectory with a single call has its tokens, if they were
recorded; those of several calls are not joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atroposlib.frontend.dumps.samples import (
    DumpSample,
    Message,
    Record,
    numbers_of,
    text_or_none,
)
from atroposlib.wire.numbers import finite_float

ROLES = {"agent": "assistant"}  # further sources are roles


def is_trajectory(record: Record) -> bool:
    version = record.get("schema_version")
    return isinstance(version, str) and version.startswith("ATIF-v1")


def trajectory_sample(record: Record, step: int | None) -> DumpSample:
    """The sample of a trajectory; a reward among the additional values is its score."""
    steps, agent = record["steps"], record.get("agent") or {}
    final = record.get("final_metrics") or {}
    extra = [part.get("extra") or {} for part in (record, final)]
    reward = next((part["reward"] for part in extra if "reward" in part), None)
    calls = [own["metrics"] for own in steps if own.get("metrics")]
    only = calls[0] if len(calls) == 1 else {}
    before = list(only.get("prompt_token_ids") or [])
    after = list(only.get("completion_token_ids") or [])
    logprobs = only.get("logprobs")
    more = {
        "agent": " ".join(str(agent[name]) for name in ("name", "version") if agent.get(name)),
        "model": text_or_none(agent.get("model_name")),
        "format": record["schema_version"],
        "steps": len(steps),
    }
    return DumpSample(
        prompt_id=None,
        messages=[message for own in steps for message in messages_of_step(own)],
        score=finite_float(reward),
        named=numbers_of(final),
        item=text_or_none(record.get("session_id") or record.get("trajectory_id")),
        step=step,
        tokens=before + after,
        trained=[False] * len(before) + [True] * len(after),
        logprobs=[float(value) for value in logprobs] if logprobs and after else None,
        more=more,
    )


def messages_of_step(step: Mapping[str, Any]) -> list[Message]:
    """The message of a step, and a message for each observation."""
    source = str(step["source"])
    message: Message = {
        "role": ROLES.get(source, source),
        "content": _text(step.get("message")),
    }
    if step.get("reasoning_content"):
        message["reasoning_content"] = step["reasoning_content"]
    if calls := step.get("tool_calls"):
        message["tool_calls"] = [
            {
                "id": call.get("tool_call_id"),
                "type": "function",
                "function": {
                    "name": call["function_name"],
                    "arguments": call.get("arguments"),
                },
            }
            for call in calls
        ]
    results = (step.get("observation") or {}).get("results") or []
    observed = [
        {"role": "tool", "content": _text(result.get("content"))} for result in results
    ]
    return [message, *observed]


def _text(content: Any) -> str:
    """The text of a content, which may stand in parts."""
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
        return "\n".join(str(part) for part in parts if part)
    return "" if content is None else str(content)
