"""Group filter: complete, accept or reject a scored group, and convert it for the wire. Pure.

    ScoredDataGroup --with_sampled, filter_group--> AcceptedGroup (columns) --as_sent--> client
                                        '---------> RejectedGroup (reason, detail)

The numbers of a group are converted once: the checked arrays are the sent arrays.
A second conversion of 10^5 tokens would cost milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

import msgspec

from atroposlib.certificate.seals import SEAL, SEALS, TASK, score_seal
from atroposlib.envs.rollout.groups import (
    PER_ROW,
    WIRE_FIELDS,
    ScoredDataGroup,
    group_size_of,
    plain,
)
from atroposlib.errors import InvalidGroup
from atroposlib.generation.sessions.sequences import Node
from atroposlib.wire import MASKED, MASKED_VERSION, ScoredData
from atroposlib.wire.routing import join_experts

if TYPE_CHECKING:
    from atroposlib.wire.group_arrays import Columns

# Rows with a number per token: checked when they become arrays.
_ROWS = frozenset({"tokens", "masks", "inference_logprobs", "ref_logprobs", "versions"})
# Raised where a field does not have the form of its type, for example a number in place of a
# list.
NOT_A_GROUP = (AttributeError, KeyError, TypeError, ValueError)
FIT = "raise max_token_length and the trainer's seq_len, or lower max_tokens"
VARY = "raise temperature or group_size, or set ensure_scores_are_not_same to false"
_REQUIRED = ("tokens", "masks", "scores")
_OPTIONAL = frozenset(PER_ROW).difference(_REQUIRED)
CLOSE_NATS = 1e-4  # environments may keep logprobs as float32
OF_WHOLE_SPANS = ("finish_reason", SEAL)  # keys that a cut span loses


class RejectReason(str, Enum):
    """Why a group is not sent; counted under the metric ``train/dropped_<value>``."""

    WRONG_SIZE = "wrong_size"
    SHORT = "short"  # too few samples have a score, after second draws
    SAME_SCORES = "same_scores"
    TOO_LONG = "too_long"
    INVALID = "invalid"
    MALFORMED = "malformed"  # not of the form of a group, so that no check applies
    GATE = "gate"  # the gate of the curriculum did not admit it
    REFUSED = "refused"  # the rollout API answered 4xx
    RUN_ENDED = "run_ended"  # the run it was sampled for was reset
    HOOK_FAILED = "hook_failed"  # a hook of the environment raised before the send
    UNSENT = "unsent"  # the process ended before the rollout API accepted it


@dataclass(frozen=True)
class FilterRules:
    """Settings of the filter; ``max_token_len`` <= 0: unknown."""

    group_size: int
    ensure_scores_are_not_same: bool = True
    max_token_len: int = -1
    drop_too_long: bool = True
    source_digest: str = ""  # code and data that score; empty: scores are not sealed


@dataclass(frozen=True)
class RejectedGroup:
    """A group that is not sent, with a sentence for the log."""

    reason: RejectReason
    detail: str


@dataclass(frozen=True)
class AcceptedGroup:
    """A group that is sent, also as arrays; ``faults`` are the faults that the rules allow."""

    group: ScoredDataGroup
    columns: Columns
    faults: Sequence[RejectedGroup] = ()

    @property
    def sequences(self) -> int:
        return len(self.columns.seq_lens)

    def trained_lengths(self) -> list[int]:
        """Number of trained tokens of each sequence, (G,)."""
        import numpy as np

        ends = np.cumsum(self.columns.seq_lens)
        counted = np.concatenate([[0], np.cumsum(self.columns.trained)])
        return [int(n) for n in counted[ends] - counted[ends - self.columns.seq_lens]]

    def as_sent(self, env_id: int) -> Columns:
        """The columns for the rollout API, with this environment's number and the keys."""
        key = self.group.get("idempotency_key")
        group_id = self.group.get("group_id") or key
        return replace(self.columns, env_id=env_id, idempotency_key=key, group_id=group_id)


def filter_group(
    group: ScoredDataGroup, rules: FilterRules, nodes: Sequence[Node] = ()
) -> AcceptedGroup | RejectedGroup:
    """Accept or reject ``group``. A sequence of exactly ``max_token_len`` tokens is accepted.

    ``nodes`` belong to the rollout of the group; an accepted group has their facts about its
    rows.
    """
    try:
        return _judge(with_sampled(group, nodes), rules)
    except InvalidGroup as problem:
        return RejectedGroup(RejectReason.INVALID, str(problem))
    except NOT_A_GROUP as problem:
        return RejectedGroup(RejectReason.MALFORMED, repr(problem))


def _judge(group: ScoredDataGroup, rules: FilterRules) -> AcceptedGroup | RejectedGroup:
    missing = [name for name in _REQUIRED if group.get(name) is None]
    if missing:
        return RejectedGroup(RejectReason.INVALID, f"{missing[0]}: missing")
    rows, expected = len(group["tokens"]), group_size_of(group, rules.group_size)
    if rows != expected:
        return RejectedGroup(RejectReason.WRONG_SIZE, f"{rows} sequences, expected {expected}")
    columns = to_columns(group)
    first = float(columns.scores[0])
    faults: dict[RejectedGroup, bool] = {}  # and whether the rules drop the group for it
    if (columns.scores == first).all():
        detail = f"all {rows} scores are {first:g}; {VARY}"
        same = RejectedGroup(RejectReason.SAME_SCORES, detail)
        faults[same] = rules.ensure_scores_are_not_same
    if 0 < rules.max_token_len < (longest := int(columns.seq_lens.max())):
        detail = f"{longest} tokens, at most {rules.max_token_len}; {FIT}"
        faults[RejectedGroup(RejectReason.TOO_LONG, detail)] = rules.drop_too_long
    rejected = next((fault for fault, rejects in faults.items() if rejects), None)
    if rejected is not None:
        return rejected
    accepted = AcceptedGroup(group, columns, tuple(faults))
    return sealed_group(accepted, rules.source_digest) if rules.source_digest else accepted


def sealed_group(accepted: AcceptedGroup, source_digest: str) -> AcceptedGroup:
    """The group with a seal of the score of each row, and with an outcome where it has none."""
    group, columns = accepted.group, accepted.columns
    metadata = dict(group.get("metadata") or {})
    outcomes = group.get("outcomes") or ["ok"] * len(columns.seq_lens)
    ends = columns.seq_lens.cumsum().tolist()
    metadata[SEALS] = [
        score_seal(
            score,
            outcome,
            columns.tokens[end - length : end],
            source_digest,
            metadata.get(TASK),
        )
        for score, outcome, length, end in zip(
            columns.scores.tolist(), outcomes, columns.seq_lens.tolist(), ends
        )
    ]
    facts = {"metadata": metadata, "outcomes": outcomes}
    rest = {name: msgspec.json.encode(value) for name, value in facts.items()}
    return replace(
        accepted,
        group=cast(ScoredDataGroup, {**group, **facts}),
        columns=replace(columns, rest={**columns.rest, **rest}),
    )


def to_columns(group: Mapping[str, Any]) -> Columns:
    """The group as flat arrays, with the same checks as at the rollout API.

    Raises InvalidGroup: the group cannot be trained on; names the field, not the value.
    """
    from atroposlib.wire.columns import from_group  # numpy loads where it is used

    return from_group(to_wire(group))


def to_wire(group: Mapping[str, Any]) -> ScoredData:
    """The record of ``group``, not yet checked; rows of numbers may still be arrays.

    Raises InvalidGroup: a score is not a number.
    """
    fields = {
        name: value if name in _ROWS else plain(value)
        for name, value in group.items()
        if name in WIRE_FIELDS and not (name in _OPTIONAL and _is_empty(value))
    }
    if isinstance(fields.get("messages"), list):
        fields["messages"] = list(map(_messages_of, fields["messages"]))
    if fields.get("advantages") is not None:
        fields["advantages"] = _rows_of(fields["advantages"], fields["tokens"])
    fields["scores"] = [_number(g, score) for g, score in enumerate(fields["scores"])]
    return ScoredData(**fields)


def _is_empty(value: Any) -> bool:
    """Whether ``value`` is a list, or an array, without an entry: the original's missing field."""
    is_list = hasattr(value, "__len__") and not isinstance(value, (str, Mapping))
    return is_list and not len(value)


def _messages_of(row: Any) -> Any:
    """The messages of a row; a text of a row, which ``process`` and its page take, as a message."""
    return [{"role": "user", "content": row}] if isinstance(row, str) else row


def _rows_of(advantages: list[Any], tokens: Sequence[Sequence[int]]) -> list[Any]:
    """``advantages`` with each number that stands for a whole row as a constant row."""
    if len(advantages) != len(tokens):
        return advantages
    return [
        [advantage] * len(row) if isinstance(advantage, (int, float)) else advantage
        for advantage, row in zip(advantages, tokens)
    ]


def _number(g: int, score: Any) -> float:
    try:
        return float(score)
    except (TypeError, ValueError) as error:
        raise InvalidGroup("scores", f"[{g}]", "not a number") from error


# --- rows that an environment assembled from recorded nodes ---------------------------------
#
# Environments of the original copy tokens, masks and logprobs of a node into their group and
# nothing else. The node that a row was copied from is found by its tokens and logprobs:
#
#     row        p p p a a q q b b       a node of the last turn, or nodes of single turns;
#     span 1           ^^^               the row may be cut at its end
#     span 2                   ^^^


def with_sampled(group: ScoredDataGroup, nodes: Sequence[Node]) -> ScoredDataGroup:
    """The group with sampling, versions and finish reasons of ``nodes`` where it has none."""
    fields = cast(Mapping[str, Any], group)
    sampled = _found_in(nodes, fields) if nodes and fields.get("sampling") is None else {}
    whole = {**fields, **sampled}
    # For trainers that do not read sampling. What names a temperature already is kept.
    named = [fields.get(k) for k in ("generation_params", "group_overrides")]
    named += fields.get("overrides") or ()
    temperatures = {span["temperature"] for row in whole.get("sampling") or () for span in row}
    if len(temperatures) == 1 and not any(
        "temperature" in (sampling or {}) for sampling in named
    ):
        whole["generation_params"] = {**(named[0] or {}), "temperature": temperatures.pop()}
    return cast(ScoredDataGroup, whole)


def _found_in(nodes: Sequence[Node], group: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that the group lacks; none if no row is of these nodes."""
    tokens_G, masks_G = plain(group["tokens"]), plain(group["masks"])
    logprobs_G = plain(group.get("inference_logprobs")) or [None] * len(tokens_G)
    sampling, versions, endings, routed = [], [], [], []
    for tokens, masks, logprobs in zip(tokens_G, masks_G, logprobs_G):
        spans = _spans(tokens, masks, logprobs, nodes)
        of_row = [MASKED_VERSION] * len(tokens)
        for span, node in spans:
            for t in range(span["start"], span["end"]):
                of_row[t] = MASKED_VERSION if masks[t] == MASKED else node.versions[t]
        whole = spans and spans[-1][0]["end"] == len(tokens)
        sampling.append([span for span, _ in spans])
        versions.append(of_row)
        last = [
            join_experts((0, node.routed_experts), end=at["end"]) for at, node in spans[-1:]
        ]
        routed += last or [None]
        endings.append(spans[-1][0].get("finish_reason") if whole else None)
    if not any(sampling):
        return {}
    known = any(version >= 0 for row in versions for version in row)
    more = {"finish_reasons": endings, **({"versions": versions} if known else {})}
    more |= {"routed_experts": routed} if any(routed) else {}
    return {"sampling": sampling, **{k: v for k, v in more.items() if group.get(k) is None}}


def _spans(
    tokens: list[int], masks: list[int], logprobs: list[float] | None, nodes: Sequence[Node]
) -> list[tuple[dict[str, Any], Node]]:
    """Spans of the row, ascending, and their nodes; of several that fit, the newest counts."""
    spans: dict[int, tuple[dict[str, Any], Node]] = {}
    # Longer nodes last: the row would be a part of a longer node.
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
                kept = {k: v for k, v in span.items() if whole or k not in OF_WHOLE_SPANS}
                spans.setdefault(start, ({**kept, "end": end}, node))
    apart: list[tuple[dict[str, Any], Node]] = []
    for start in sorted(spans):
        if not apart or apart[-1][0]["end"] <= start:
            apart.append(spans[start])
    return apart
