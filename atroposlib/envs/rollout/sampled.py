"""Rows that an environment assembled from recorded nodes, completed by what the nodes hold. Pure.

Environments of the original copy tokens, masks and logprobs of a node into their group and
nothing else. The node that a row was copied from is found by its tokens and logprobs:

    row        p p p a a q q b b       a node of the last turn, or nodes of single turns;
    span 1           ^^^               the row may be cut at its end
    span 2                   ^^^
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from atroposlib.envs.rollout.groups import ScoredDataGroup, plain
from atroposlib.generation.sessions.sequences import Node
from atroposlib.wire import MASKED, MASKED_VERSION

CLOSE_NATS = 1e-4  # environments may keep logprobs as float32


class _Found(NamedTuple):
    """A span of a row, and the versions of its tokens."""

    span: dict[str, Any]
    versions: list[int]


def with_sampled(group: ScoredDataGroup, nodes: Sequence[Node]) -> ScoredDataGroup:
    """The group with sampling, versions and finish reasons of ``nodes`` where it has none."""
    fields = cast(Mapping[str, Any], group)
    if not nodes or fields.get("sampling") is not None:
        return group
    rows = _rows(fields)
    found_G = [_found(*row, nodes) for row in rows]
    if not any(found_G):
        return group
    more: dict[str, Any] = {"sampling": [[one.span for one in found] for found in found_G]}
    versions = [_versions(*row[:2], found) for row, found in zip(rows, found_G)]
    if fields.get("versions") is None and any(v >= 0 for row in versions for v in row):
        more["versions"] = versions
    if not fields.get("finish_reasons"):
        more["finish_reasons"] = [_ending(row[0], found) for row, found in zip(rows, found_G)]
    # For trainers that do not read sampling; the key of a row or group that is there counts more.
    temperatures = {one.span["temperature"] for found in found_G for one in found}
    if len(temperatures) == 1 and not _names_temperature(fields):
        given = fields.get("generation_params") or {}
        more["generation_params"] = {**given, "temperature": temperatures.pop()}
    return cast(ScoredDataGroup, {**fields, **more})


_Row = tuple[list[int], list[int], list[float] | None]  # tokens, masks, logprobs


def _rows(group: Mapping[str, Any]) -> list[_Row]:
    tokens, masks = plain(group["tokens"]), plain(group["masks"])
    logprobs = plain(group.get("inference_logprobs")) or [None] * len(tokens)
    return list(zip(tokens, masks, logprobs))


def _found(
    tokens: list[int], masks: list[int], logprobs: list[float] | None, nodes: Sequence[Node]
) -> list[_Found]:
    """Spans of the row, ascending; of several nodes that fit, the newest counts."""
    found: dict[int, _Found] = {}
    # Longer nodes last: of one the row would be a part.
    for node in sorted(reversed(nodes), key=lambda node: len(node.tokens) > len(tokens)):
        for span in node.spans:
            start, end = span["start"], min(span["end"], len(tokens))
            if start >= end or start in found:
                continue
            sampled = range(end - 1, start - 1, -1)  # siblings differ at their ends
            trained = [t for t in sampled if masks[t] != MASKED]
            same = logprobs is None or all(
                abs(logprobs[t] - node.logprobs[t]) <= CLOSE_NATS for t in trained
            )
            if not same or tokens[:end] != node.tokens[:end]:
                continue
            whole = end == span["end"]
            kept = {k: v for k, v in span.items() if whole or k != "finish_reason"}
            found[start] = _Found({**kept, "end": end}, list(node.versions[start:end]))
    return _apart([found[start] for start in sorted(found)])


def _apart(found: list[_Found]) -> list[_Found]:
    """Without spans that overlap an earlier one."""
    kept: list[_Found] = []
    for one in found:
        if not kept or kept[-1].span["end"] <= one.span["start"]:
            kept.append(one)
    return kept


def _versions(tokens: list[int], masks: list[int], found: list[_Found]) -> list[int]:
    versions = [MASKED_VERSION] * len(tokens)
    for one in found:
        versions[one.span["start"] : one.span["end"]] = one.versions
    return [MASKED_VERSION if m == MASKED else v for m, v in zip(masks, versions)]


def _ending(tokens: list[int], found: list[_Found]) -> str | None:
    """Why the last token was the last: only of a row that ends with a whole sample."""
    if not found or found[-1].span["end"] != len(tokens):
        return None
    reason: str | None = found[-1].span.get("finish_reason")
    return reason


def _names_temperature(group: Mapping[str, Any]) -> bool:
    rows = group.get("overrides") or ()
    sources = [group.get("generation_params"), group.get("group_overrides"), *rows]
    return any("temperature" in (source or {}) for source in sources)
