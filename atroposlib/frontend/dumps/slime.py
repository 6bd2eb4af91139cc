"""Rollouts of slime and of miles (save_debug_rollout_data): samples of a .pt file, or JSON lines.

prompt, response          text or messages, and the decoded reply
tokens, response_length   the whole sequence; the last ``response_length`` are the response
loss_mask, rollout_log_probs    an entry for each token of the response
group_index, reward, status, label, weight_versions (an entry for each call of the engine)
"""

from __future__ import annotations

from collections.abc import Mapping
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

FINISH = {"completed": "stop", "truncated": "length"}


def is_slime_sample(record: Record) -> bool:
    return {"prompt", "response"} <= record.keys() and (
        "response_length" in record or "group_index" in record
    )


def slime_sample(record: Record, step: int | None) -> DumpSample:
    """The sample of a record; a reward of several numbers is no score."""
    reward = record.get("reward")
    tokens = list(record.get("tokens") or [])
    n_response = int(record.get("response_length") or 0)
    mask = record.get("loss_mask")
    own = [bool(entry) for entry in mask] if mask else [True] * n_response
    if len(own) > len(tokens):
        tokens, own = [], []
    status = text_or_none(record.get("status"))
    rollout = record.get("rollout_id")
    return DumpSample(
        prompt_id=record.get("group_index"),
        messages=prompt_messages(record["prompt"]) + reply_messages(record["response"]),
        score=finite_float(reward),
        named=numbers_of(reward if isinstance(reward, Mapping) else None),
        finish=FINISH.get(status or "", status),
        step=rollout if isinstance(rollout, int) else step,
        tokens=tokens,
        trained=[False] * (len(tokens) - len(own)) + own,
        logprobs=_of_trained(record.get("rollout_log_probs"), own),
        versions=_versions(record.get("weight_versions"), own),
        more={"answer": text_or_none(record.get("label"))},
    )


def _of_trained(values: Any, own: list[bool]) -> list[float] | None:
    """Entries of the response at its trained tokens; None for another number of entries."""
    if not values or len(values) != len(own):
        return None
    return [float(value) for value, is_own in zip(values, own) if is_own]


def _versions(calls: Any, own: list[bool]) -> list[int] | None:
    """The version of each trained token, if all calls had the same."""
    known = {str(version) for version in calls or ()}
    if len(known) != 1 or not (version := known.pop()).isdigit():
        return None
    return [int(version)] * sum(own)
