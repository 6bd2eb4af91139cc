"""Rollouts of prime-rl: rollouts/step_N/train_rollouts.jsonl, in two forms of verifiers.

trace (verifiers v1)     nodes: a tree of messages with the tokens that each adds
                         rewards: {name: {score, weight}}, metrics, stop_condition, task
rollout (before it)      prompt, completion: texts or messages; reward, metrics, example_id,
                         trajectory: a call each, with tokens {prompt_ids, completion_ids,
                         completion_logprobs}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.frontend.dumps.samples import (
    DumpSample,
    Record,
    numbers_of,
    prompt_messages,
    reply_messages,
    text_or_none,
)
from atroposlib.wire.numbers import finite_float


def is_trace(record: Record) -> bool:
    return isinstance(record.get("nodes"), list) and isinstance(record.get("rewards"), Mapping)


def trace_sample(record: Record, step: int | None) -> DumpSample:
    """The path of a trace that ends with its last message; the number of paths is shown."""
    nodes, task = record["nodes"], record.get("task") or {}
    path = last_path(nodes)
    trained = [[bool(entry) for entry in node.get("mask") or []] for node in path]
    tokens = [list(node.get("token_ids") or []) for node in path]
    is_whole = all(len(ids) == len(mask) for ids, mask in zip(tokens, trained))
    rewards = [reward for reward in record["rewards"].values() if reward]
    parents = {node.get("parent") for node in nodes}
    paths = sum(at not in parents for at in range(len(nodes)))
    more = {"paths": paths} if paths > 1 else {}
    if errors := record.get("errors"):
        more["errors"] = len(errors)
    key = task.get("key") or task.get("hash")
    return DumpSample(
        prompt_id=key,
        messages=[dict(node["message"]) for node in path],
        score=sum(reward["score"] * reward.get("weight", 1.0) for reward in rewards)
        if rewards
        else None,
        named=numbers_of(
            {name: reward["score"] for name, reward in record["rewards"].items() if reward}
        )
        | numbers_of(record.get("metrics")),
        finish=text_or_none(record.get("stop_condition")),
        env=text_or_none(task.get("type")),
        item=text_or_none(key),
        step=step,
        tokens=[token for ids in tokens for token in ids] if is_whole else [],
        trained=[own for mask in trained for own in mask] if is_whole else [],
        logprobs=_of_path(path, "logprobs"),
        advantages=_of_path(path, "advantages"),
        more=more,
    )


def last_path(nodes: Sequence[Record]) -> list[Record]:
    """Nodes from the root to the last node."""
    path: list[Record] = []
    at: int | None = len(nodes) - 1 if nodes else None
    while at is not None and len(path) <= len(nodes):
        path.append(nodes[at])
        at = nodes[at].get("parent")
    return path[::-1]


def _of_path(path: Sequence[Record], name: str) -> list[float] | None:
    """Entries of the sampled tokens of a path; None if a sampled message has none."""
    sampled = [node for node in path if any(node.get("mask") or ())]
    if not sampled or any(not node.get(name) for node in sampled):
        return None
    return [float(value) for node in sampled for value in node[name]]


# --- before traces ----------------------------------------------------------------------


def is_rollout(record: Record) -> bool:
    return {"prompt", "completion", "reward"} <= record.keys()


def rollout_sample(record: Record, step: int | None) -> DumpSample:
    """The sample of a line; tokens are of a rollout with a single call."""
    calls = record.get("trajectory") or []
    tokens = (calls[0].get("tokens") if len(calls) == 1 else None) or {}
    before, after = (
        list(tokens.get("prompt_ids") or []),
        list(tokens.get("completion_ids") or []),
    )
    logprobs = tokens.get("completion_logprobs")
    advantage = finite_float(record.get("advantage"))
    finish = "length" if record.get("is_truncated") else record.get("stop_condition")
    more: dict[str, Any] = {"answer": text_or_none(record.get("answer"))}
    if len(calls) > 1:
        more["calls"] = len(calls)
    if record.get("error"):
        more["error"] = str(record["error"])[:1000]
    return DumpSample(
        prompt_id=record.get("example_id"),
        messages=prompt_messages(record["prompt"]) + reply_messages(record["completion"]),
        score=finite_float(record["reward"]),
        named=numbers_of(record.get("metrics")),
        finish=text_or_none(finish),
        env=text_or_none(record.get("env_name") or record.get("task")),
        item=text_or_none(record.get("example_id")),
        step=step,
        tokens=before + after,
        trained=[False] * len(before) + [True] * len(after),
        logprobs=[float(value) for value in logprobs] if logprobs else None,
        advantages=None if advantage is None else [advantage] * len(after),
        more=more,
    )
