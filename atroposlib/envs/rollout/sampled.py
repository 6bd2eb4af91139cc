"""Rows that an environment assembled from recorded nodes, completed by what the nodes hold. Pure.

Environments of the original copy tokens, masks and logprobs of a node into their group and
nothing else. The node that a row was copied from is found by its tokens and logprobs:

    row        p p p a a q q b b       a node of the last turn, or nodes of single turns;
    span 1           ^^^               the row may be cut at its end
    span 2                   ^^^
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from atroposlib.envs.rollout.groups import ScoredDataGroup, plain
from atroposlib.generation.sessions.sequences import Node
from atroposlib.wire import MASKED, MASKED_VERSION

CLOSE_NATS = 1e-4  # environments may keep logprobs as float32


def with_sampled(group: ScoredDataGroup, nodes: Sequence[Node]) -> ScoredDataGroup:
    """The group with sampling, versions and finish reasons of ``nodes`` where it has none."""
    fields = cast(Mapping[str, Any], group)
    found = _found_in(nodes, fields) if nodes and fields.get("sampling") is None else {}
    whole = {**fields, **found}
    # For trainers that do not read sampling. What names a temperature already is kept.
    named = [fields.get(k) for k in ("generation_params", "group_overrides")]
    named += fields.get("overrides") or ()
    temperatures = {span["temperature"] for row in whole.get("sampling") or () for span in row}
    if len(temperatures) == 1 and not any("temperature" in (one or {}) for one in named):
        whole["generation_params"] = {**(named[0] or {}), "temperature": temperatures.pop()}
    return cast(ScoredDataGroup, whole)


def _found_in(nodes: Sequence[Node], group: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that the group lacks; none if no row is of these nodes."""
    tokens_G, masks_G = plain(group["tokens"]), plain(group["masks"])
    logprobs_G = plain(group.get("inference_logprobs")) or [None] * len(tokens_G)
    sampling, versions, endings = [], [], []
    for tokens, masks, logprobs in zip(tokens_G, masks_G, logprobs_G):
        found = _spans(tokens, masks, logprobs, nodes)
        of_row = [MASKED_VERSION] * len(tokens)
        for span, node in found:
            for t in range(span["start"], span["end"]):
                of_row[t] = MASKED_VERSION if masks[t] == MASKED else node.versions[t]
        whole = found and found[-1][0]["end"] == len(tokens)
        sampling.append([span for span, _ in found])
        versions.append(of_row)
        endings.append(found[-1][0].get("finish_reason") if whole else None)
    if not any(sampling):
        return {}
    known = any(version >= 0 for row in versions for version in row)
    more = {"finish_reasons": endings, **({"versions": versions} if known else {})}
    return {"sampling": sampling, **{k: v for k, v in more.items() if group.get(k) is None}}


def _spans(
    tokens: list[int], masks: list[int], logprobs: list[float] | None, nodes: Sequence[Node]
) -> list[tuple[dict[str, Any], Node]]:
    """Spans of the row, ascending, and their nodes; of several that fit, the newest counts."""
    found: dict[int, tuple[dict[str, Any], Node]] = {}
    # Longer nodes last: of one the row would be a part.
    for node in sorted(reversed(nodes), key=lambda node: len(node.tokens) > len(tokens)):
        for span in node.spans:
            start, end = span["start"], min(span["end"], len(tokens))
            # From the end, where siblings differ.
            same = logprobs is None or all(
                abs(logprobs[t] - node.logprobs[t]) <= CLOSE_NATS
                for t in range(end - 1, start - 1, -1)
                if masks[t] != MASKED
            )
            if start < end and same and tokens[:end] == node.tokens[:end]:
                whole = end == span["end"]
                kept = {k: v for k, v in span.items() if whole or k != "finish_reason"}
                found.setdefault(start, ({**kept, "end": end}, node))
    apart: list[tuple[dict[str, Any], Node]] = []
    for start in sorted(found):
        if not apart or apart[-1][0]["end"] <= start:
            apart.append(found[start])
    return apart
