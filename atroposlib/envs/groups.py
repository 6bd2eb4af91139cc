"""From samples to a scored group: collate, keep or drop, and what goes on the wire. Pure.

    SequenceNode --from_nodes--.
                                >-- ScoredDataGroup -- reason_to_drop -- to_wire -- ScoredData
    ScoredDataItem --collate---'

Letters: G sequences of a group, T_g tokens of one of them, K teacher tokens per position.
No function here changes a group it was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol, TypedDict, cast

import msgspec

from atroposlib.errors import InvalidGroup
from atroposlib.wire import MASKED, ScoredData, validate_group


class _SequenceFields(TypedDict):
    tokens: list[int]  # (T_g,) prompt and completion
    masks: list[int]  # (T_g,) -100 where not trained, else the token id
    scores: float


class ScoredDataItem(_SequenceFields, total=False):
    """One scored sequence, as ``collect_trajectory`` returns it.

    Example: {"tokens": [1, 5, 9], "masks": [-100, -100, 9], "scores": 1.0}
    """

    advantages: list[float] | None
    ref_logprobs: list[float] | None
    inference_logprobs: list[float] | None
    versions: list[int] | None
    messages: list[dict[str, Any]] | None
    finish_reasons: str | None
    generation_params: dict[str, Any] | None
    group_overrides: dict[str, Any] | None
    overrides: dict[str, Any] | None
    images: Any
    distill_token_ids: list[list[int]] | None
    distill_logprobs: list[list[float]] | None
    metadata: dict[str, Any] | None


class _GroupFields(TypedDict):
    tokens: list[list[int]]  # (G, T_g)
    masks: list[list[int]]  # (G, T_g)
    scores: list[float]  # (G,)


class ScoredDataGroup(_GroupFields, total=False):
    """Sequences that answer one prompt, with their scores; see ``wire.ScoredData``.

    Example: {"tokens": [[1, 5, 9], [1, 5, 8]], "masks": [[-100, -100, 9], [-100, -100, 8]],
    "scores": [1.0, 0.0], "metadata": {"metrics": {"exact": 0.5}}}
    """

    advantages: list[list[float]] | None
    ref_logprobs: list[list[float]] | None
    inference_logprobs: list[list[float]] | None
    versions: list[list[int]] | None
    messages: list[list[dict[str, Any]]] | None
    finish_reasons: list[str | None] | None
    outcomes: list[str] | None
    generation_params: dict[str, Any] | None
    group_overrides: dict[str, Any] | None
    overrides: list[dict[str, Any]] | None
    images: Any
    distill_token_ids: list[list[list[int]]] | None
    distill_logprobs: list[list[list[float]]] | None
    group_id: str | None
    idempotency_key: str | None
    metadata: dict[str, Any] | None


class Node(Protocol):
    """What a managed server knows of one sampled sequence."""

    tokens: list[int]
    masked_tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    metadata: Any


ALL_OR_NONE = (
    "advantages",
    "ref_logprobs",
    "inference_logprobs",
    "versions",
    "messages",
    "images",
    "distill_token_ids",
    "distill_logprobs",
)  # a row without one of these beside rows that have it could not be lined up


def from_nodes(
    nodes: Sequence[Node],
    scores: Sequence[float],
    *,
    generation_params: dict[str, Any] | None = None,
    messages: list[list[dict[str, Any]]] | None = None,
    metrics: dict[str, float] | None = None,
    overrides: list[dict[str, Any]] | None = None,
) -> ScoredDataGroup:
    """The group of ``nodes`` (one per sequence), with ``scores`` in the same order.

    ``metrics`` are numbers about the group, such as {"exact": 0.25}; the trainer averages
    them over its batch.

    Raises:
        InvalidGroup: there are not as many scores as nodes.
    """
    if len(nodes) != len(scores):
        raise InvalidGroup("scores", "", f"{len(scores)} scores for {len(nodes)} sequences")
    group: ScoredDataGroup = {
        "tokens": [list(node.tokens) for node in nodes],
        "masks": [list(node.masked_tokens) for node in nodes],
        "scores": [float(score) for score in scores],
        "inference_logprobs": [list(node.logprobs) for node in nodes],
        "finish_reasons": [(node.metadata or {}).get("finish_reason") for node in nodes],
        "generation_params": generation_params,
        "messages": messages,
        "overrides": overrides,
        "metadata": {"metrics": dict(metrics or {})},
    }
    if all(len(node.versions) == len(node.tokens) for node in nodes):
        group["versions"] = [list(node.versions) for node in nodes]
    return group


def collate(items: Sequence[ScoredDataItem]) -> ScoredDataGroup:
    """Stack scored sequences into one group; what no item has stays absent.

    Sampling parameters on which the items differ become per-sequence overrides.

    Raises:
        InvalidGroup: some items carry an optional row and others do not.
    """
    rows = cast(Sequence[Mapping[str, Any]], items)
    group: dict[str, Any] = {
        "tokens": [row["tokens"] for row in rows],
        "masks": [row["masks"] for row in rows],
        "scores": [row["scores"] for row in rows],
    }
    for name in ALL_OR_NONE:
        if (values := _all_or_none(name, rows)) is not None:
            group[name] = values
    if any(row.get("finish_reasons") for row in rows):
        group["finish_reasons"] = [row.get("finish_reasons") for row in rows]
    group_overrides = _merged(row.get("group_overrides") for row in rows)
    if group_overrides:
        group["group_overrides"] = group_overrides
    params, own_params = _split_shared([row.get("generation_params") or {} for row in rows])
    if params:
        group["generation_params"] = params
    overrides = [{**own, **(row.get("overrides") or {})} for own, row in zip(own_params, rows)]
    if any(overrides) or any(row.get("overrides") is not None for row in rows):
        group["overrides"] = overrides
    if any(row.get("metadata") for row in rows):
        group["metadata"] = {
            "metrics": mean_metrics((row.get("metadata") or {}).get("metrics") for row in rows)
        }
    return cast(ScoredDataGroup, group)


def mean_metrics(metrics: Iterable[Mapping[str, float] | None]) -> dict[str, float]:
    """The mean of each metric over the mappings that have it."""
    seen: dict[str, list[float]] = {}
    for one in metrics:
        for name, value in (one or {}).items():
            seen.setdefault(name, []).append(float(value))
    return {name: sum(values) / len(values) for name, values in seen.items()}


def _all_or_none(name: str, rows: Sequence[Mapping[str, Any]]) -> list[Any] | None:
    values = [row.get(name) for row in rows]
    missing = [i for i, value in enumerate(values) if value is None]
    if len(missing) == len(values):
        return None
    if missing:
        raise InvalidGroup(name, f"[{missing[0]}]", "missing, while other sequences have it")
    return values


def _merged(mappings: Iterable[Mapping[str, Any] | None]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for mapping in mappings:
        merged.update(mapping or {})
    return merged


def _split_shared(
    params: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Entries equal in all mappings, and per mapping the entries that are not."""
    first = params[0] if params else {}
    shared = {
        k: v for k, v in first.items() if all(k in other and other[k] == v for other in params)
    }
    return shared, [{k: v for k, v in one.items() if k not in shared} for one in params]


# --- keep or drop -------------------------------------------------------------------


class Drop(str, Enum):
    """Why a group is not sent; each is counted and logged under ``train/dropped_<value>``."""

    WRONG_SIZE = "wrong_size"
    SAME_SCORES = "same_scores"
    TOO_LONG = "too_long"
    INVALID = "invalid"
    REFUSED = "refused"  # the rollout API answered 4xx
    RUN_ENDED = "run_ended"  # the run it was sampled for was reset


def expected_size(group: ScoredDataGroup, group_size: int) -> int:
    """Sequences this group should have: its own override, else the configured size."""
    return int((group.get("group_overrides") or {}).get("group_size") or group_size)


def reason_to_drop(
    group: ScoredDataGroup,
    *,
    group_size: int,
    ensure_scores_are_not_same: bool,
    max_token_len: int,
    drop_too_long: bool = True,
) -> tuple[Drop, str] | None:
    """Why ``group`` must not be sent, with a sentence for the log; None keeps it.

    A sequence of exactly ``max_token_len`` tokens fits. ``max_token_len`` <= 0: unknown.
    """
    rows, expected = len(group["tokens"]), expected_size(group, group_size)
    if rows != expected:
        return Drop.WRONG_SIZE, f"{rows} sequences where {expected} are expected"
    if ensure_scores_are_not_same and len(set(map(float, group["scores"]))) == 1:
        return Drop.SAME_SCORES, f"all {rows} scores are {float(group['scores'][0]):g}"
    longest = max(map(len, group["tokens"]))
    if drop_too_long and 0 < max_token_len < longest:
        return Drop.TOO_LONG, f"{longest} tokens where {max_token_len} fit"
    try:
        validate_group(to_wire(group))
    except InvalidGroup as problem:
        return Drop.INVALID, str(problem)
    return None


def trained_lengths(group: ScoredDataGroup) -> list[int]:
    """Number of trained tokens of each sequence, (G,)."""
    return [sum(label != MASKED for label in row) for row in group["masks"]]


# --- on the wire --------------------------------------------------------------------


def to_wire(group: ScoredDataGroup, **extra: Any) -> ScoredData:
    """The record of ``group``; arrays and numpy scalars become lists and numbers.

    Raises:
        InvalidGroup: a field has another type than the record's.
    """
    values = {name: plain(value) for name, value in group.items() if name in WIRE_FIELDS}
    values["scores"] = [float(score) for score in values["scores"]]
    values.update((name, value) for name, value in extra.items() if value is not None)
    try:
        return msgspec.convert(values, ScoredData)
    except msgspec.ValidationError as error:
        raise InvalidGroup("group", "", str(error)) from error


WIRE_FIELDS = frozenset(ScoredData.__struct_fields__)
_SCALARS = frozenset({int, float, str, bool, type(None)})


def plain(value: Any) -> Any:
    """``value`` with arrays and numpy scalars turned into what JSON knows."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        # A row of 10^4 numbers is the usual case: decide once for all of it.
        if _SCALARS.issuperset(map(type, value)):
            return list(value)
        return [plain(entry) for entry in value]
    to_list = getattr(value, "tolist", None)
    if to_list is not None:
        return to_list()
    return value


def unknown_fields(group: Mapping[str, Any]) -> list[str]:
    """Keys the record does not have; they would be lost without a word."""
    return sorted(group.keys() - WIRE_FIELDS)


def item_label(item: Any) -> str:
    """A short name of an item: its ``id`` if it has one, else how it prints."""
    identity = item.get("id") if isinstance(item, Mapping) else None
    return str(identity if identity is not None else repr(item))[:200]


def with_metadata(group: ScoredDataGroup, **metadata: Any) -> ScoredDataGroup:
    """A copy of ``group`` whose metadata also says ``metadata``; its own entries win."""
    copy = ScoredDataGroup(**group)
    copy["metadata"] = {**metadata, **(group.get("metadata") or {})}
    return copy
