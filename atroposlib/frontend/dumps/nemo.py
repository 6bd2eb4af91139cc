"""Rollouts of NeMo RL (train_data_stepN.jsonl) and of NeMo Gym, a line for each sample.

training data   content: texts of the messages, without roles; rewards, token_ids,
                token_loss_mask, generation_logprobs, advantages, input_lengths; a value may stand
                in a list of length 1, and token columns are padded
Gym             responses_create_params.input, response.output: items of the Responses API; reward
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from atroposlib.frontend.dumps.samples import (
    TEXT,
    DumpSample,
    Message,
    Record,
    numbers_of,
    prompt_messages,
    text_or_none,
)
from atroposlib.wire.numbers import finite_float


def is_training_data(record: Record) -> bool:
    return "rewards" in record and ("content" in record or "token_ids" in record)


def training_sample(record: Record, step: int | None) -> DumpSample:
    """The sample of a line; samples with several texts are a group by their first text."""
    content = record.get("content") or []
    content = content[0] if content and isinstance(content[0], list) else content
    texts = [content] if isinstance(content, str) else [str(text) for text in content]
    length = _single(record.get("input_lengths"))
    tokens = list(_row(record, "token_ids") or [])[
        : length if isinstance(length, int) else None
    ]
    mask = _row(record, "token_loss_mask")
    trained = [bool(entry) for entry in (mask or [])[: len(tokens)]]
    is_whole = len(trained) == len(tokens)
    return DumpSample(
        prompt_id=texts[0] if len(texts) > 1 else None,
        messages=[{"role": TEXT, "content": text} for text in texts],
        score=finite_float(_single(record["rewards"])),
        env=text_or_none(_agent(record)),
        step=step,
        tokens=tokens if is_whole else [],
        trained=trained if is_whole else [],
        logprobs=_at_trained(_row(record, "generation_logprobs"), trained),
        advantages=_at_trained(_row(record, "advantages"), trained),
        more={} if is_whole else {"tokens": f"{len(tokens)}, none of them known as trained"},
    )


def _single(value: Any) -> Any:
    """A value that may stand in a list of length 1."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _row(record: Record, name: str) -> list[Any] | None:
    """A column of tokens that may stand in a list of length 1."""
    value = record.get(name)
    value = value[0] if value and isinstance(value[0], list) else value
    return value if isinstance(value, list) else None


def _at_trained(values: list[Any] | None, trained: list[bool]) -> list[float] | None:
    if values is None or len(values) < len(trained) or not any(trained):
        return None
    return [float(value) for value, own in zip(values, trained) if own]


def _agent(record: Record) -> Any:
    agent = _single(record.get("agent_ref"))
    return agent.get("name") if isinstance(agent, Mapping) else agent


# --- NeMo Gym ---------------------------------------------------------------------------


def is_gym(record: Record) -> bool:
    return {"responses_create_params", "response"} <= record.keys()


def gym_sample(record: Record, step: int | None) -> DumpSample:
    """The sample of a line; samples of a task have the same index or the same input."""
    asked = record["responses_create_params"].get("input") or []
    question = [{"role": "user", "content": asked}] if isinstance(asked, str) else [*asked]
    output = record["response"].get("output") or []
    task = record.get("_ng_task_index", record.get("task_index"))
    agent = record.get("agent_ref")
    named = {
        name: value
        for name, value in numbers_of(record).items()
        if name != "reward" and not name.startswith("_")
    }
    incomplete = record["response"].get("incomplete_details") or {}
    return DumpSample(
        prompt_id=json.dumps(asked, sort_keys=True) if task is None else task,
        messages=[message_of_item(item) for item in [*question, *output]],
        score=finite_float(record.get("reward")),
        named=named,
        finish=text_or_none(incomplete.get("reason") or record["response"].get("status")),
        env=text_or_none(agent.get("name") if isinstance(agent, Mapping) else agent),
        item=text_or_none(task),
        step=step,
    )


def message_of_item(item: Mapping[str, Any]) -> Message:
    """A message of an item of the Responses API."""
    kind = item.get("type", "message")
    if kind == "function_call":
        call = {"name": item.get("name"), "arguments": item.get("arguments")}
        calls = [{"id": item.get("call_id"), "type": "function", "function": call}]
        return {"role": "assistant", "content": "", "tool_calls": calls}
    if kind == "function_call_output":
        return {"role": "tool", "content": str(item.get("output") or "")}
    if kind == "reasoning":
        parts = item.get("summary") or item.get("content") or []
        return {"role": "assistant", "content": "", "reasoning_content": _text(parts)}
    content = item.get("content")
    message = {"role": item.get("role", TEXT), "content": content}
    if isinstance(content, list):
        message["content"] = _text(content)
    return prompt_messages([message])[0]


def _text(parts: Any) -> str:
    """The texts of the parts of an item."""
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
    return "\n".join(str(text) for text in texts if text)
