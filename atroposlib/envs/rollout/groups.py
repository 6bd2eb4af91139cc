"""Scored groups: types, collation of samples, conversion to JSON values. Pure.

    SequenceNode --from_nodes------------------.
      '-from_node--> ScoredDataItem --collate--+- ScoredDataGroup --without_unscored--> filters

Letters: G sequences of a group, T_g tokens of sequence g, K teacher tokens per position.
No function here changes its argument.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, cast

from atroposlib.errors import InvalidGroup
from atroposlib.generation.sessions.dummy import dummy_allowed
from atroposlib.generation.sessions.sequences import Node
from atroposlib.wire import ScoredData
from atroposlib.wire.routing import RoutedExperts


class _SequenceFields(TypedDict):
    tokens: list[int]  # (T_g,) prompt and completion
    masks: list[int]  # (T_g,) -100 where not trained, else the token id
    scores: float


class ScoredDataItem(_SequenceFields, total=False):
    """A scored sequence, as ``collect_trajectory`` returns it.

    Example: {"tokens": [1, 5, 9], "masks": [-100, -100, 9], "scores": 1.0}
    """

    advantages: list[float] | None
    ref_logprobs: list[float] | None
    inference_logprobs: list[float] | None
    versions: list[int] | None
    sampling: list[dict[str, Any]] | None  # (calls,) each as ``wire.SampledSpan``
    routed_experts: RoutedExperts | None
    messages: list[dict[str, Any]] | None
    finish_reasons: str | None
    outcomes: str | None
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
    """Sequences that answer a prompt, with their scores; see ``wire.ScoredData``.

    Example: {"tokens": [[1, 5, 9], [1, 5, 8]], "masks": [[-100, -100, 9], [-100, -100, 8]],
    "scores": [1.0, 0.0], "metadata": {"metrics": {"exact": 0.5}}}
    """

    advantages: list[list[float]] | None
    ref_logprobs: list[list[float]] | None
    inference_logprobs: list[list[float]] | None
    versions: list[list[int]] | None
    sampling: list[list[dict[str, Any]]] | None
    routed_experts: list[RoutedExperts | None] | None
    messages: list[list[dict[str, Any]]] | None
    finish_reasons: list[str | None] | None
    outcomes: list[str] | None
    generation_params: dict[str, Any] | None
    group_overrides: dict[str, Any] | None
    overrides: list[dict[str, Any]] | None
    images: Any
    incarnation: int | None
    distill_token_ids: list[list[list[int]]] | None
    distill_logprobs: list[list[list[float]]] | None
    group_id: str | None
    idempotency_key: str | None
    metadata: dict[str, Any] | None


ALL_OR_NONE = (
    "advantages",
    "ref_logprobs",
    "inference_logprobs",
    "versions",
    "messages",
    "images",
    "distill_token_ids",
    "distill_logprobs",
)  # optional fields that either all rows have or none: they are aligned by row
PER_ROW = (
    "tokens",
    "masks",
    "scores",
    "sampling",
    "finish_reasons",
    "outcomes",
    "overrides",
    "routed_experts",
    *ALL_OR_NONE,
)
# values of rows without the field
_UNNAMED: dict[str, Any] = {"outcomes": "ok", "sampling": []}
TASK_DIGITS = 16  # digits of a task's digest
PLACED_KEYS = frozenset({"id", "task", "place", "epoch"})  # TaskItem of a function
# limits of the facts of a row
MAX_ROW_NUMBERS, MAX_JUDGE_CHARACTERS, MAX_ROLE_CHARACTERS = 32, 2000, 64


def from_nodes(
    nodes: Sequence[Node],
    scores: Sequence[float],
    *,
    generation_params: dict[str, Any] | None = None,
    messages: list[list[dict[str, Any]]] | None = None,
    metrics: dict[str, float] | None = None,
    overrides: list[dict[str, Any]] | None = None,
) -> ScoredDataGroup:
    """The group of ``nodes`` (a node per sequence), with ``scores`` in the same order.

    ``metrics`` are numbers about the group, for example {"exact": 0.25}; the trainer averages
    them over its batch. Raises InvalidGroup: the numbers of scores and nodes differ, or tokens
    were made up.
    """
    if len(nodes) != len(scores):
        raise InvalidGroup("scores", "", f"{len(scores)} scores for {len(nodes)} sequences")
    for i, node in enumerate(nodes):
        _refuse_made_up(node, f"[{i}]")
    group: ScoredDataGroup = {
        "tokens": [list(node.tokens) for node in nodes],
        "masks": [list(node.masked_tokens) for node in nodes],
        "scores": [float(score) for score in scores],
        "inference_logprobs": [list(node.logprobs) for node in nodes],
        "finish_reasons": [_finish_reason(node) for node in nodes],
        "generation_params": generation_params,
        "messages": messages,
        "overrides": overrides,
        "metadata": {"metrics": dict(metrics or {})},
    }
    if all(map(_knows_versions, nodes)):
        group["versions"] = [list(node.versions) for node in nodes]
    if any(sampling := [_spans(node) for node in nodes]):
        group["sampling"] = sampling
    if any(routed := [getattr(node, "routed_experts", None) for node in nodes]):
        group["routed_experts"] = routed
    if any(images := [getattr(node, "images", []) for node in nodes]):
        group["images"] = images
    return group


def from_node(
    node: Node,
    score: float,
    *,
    generation_params: dict[str, Any] | None = None,
    messages: list[dict[str, Any]] | None = None,
    metrics: Mapping[str, float] | None = None,
    overrides: dict[str, Any] | None = None,
) -> ScoredDataItem:
    """Sample for ``collect_trajectory`` to return, from ``node`` and its score.

    Raises InvalidGroup: the tokens were made up.
    """
    _refuse_made_up(node, "")
    item: ScoredDataItem = {
        "tokens": list(node.tokens),
        "masks": list(node.masked_tokens),
        "scores": score,
        "inference_logprobs": list(node.logprobs),
        "messages": messages,
        "finish_reasons": _finish_reason(node),
        "generation_params": generation_params,
        "overrides": overrides,
    }
    if metrics is not None:
        item["metadata"] = {"metrics": dict(metrics)}
    if _knows_versions(node):
        item["versions"] = list(node.versions)
    known: dict[str, Any] = {"sampling": _spans(node)}
    known |= {name: getattr(node, name, None) for name in ("routed_experts", "images")}
    return cast(ScoredDataItem, {**item, **{k: v for k, v in known.items() if v}})


def _refuse_made_up(node: Node, index: str) -> None:
    if (node.metadata or {}).get("dummy_tokens") and not dummy_allowed():
        raise InvalidGroup("tokens", index, "made up, not sampled: they cannot be trained on")


def _knows_versions(node: Node) -> bool:
    return len(node.versions) == len(node.tokens)


def _spans(node: Node) -> list[dict[str, Any]]:
    """How the node was sampled; nodes made by an environment may not have it."""
    return list(getattr(node, "spans", None) or [])


def _finish_reason(node: Node) -> Any:
    return (node.metadata or {}).get("finish_reason")


def groups_in(scored: Any) -> list[Any]:
    """The groups in ``scored`` (a group, a list with None entries, or None), as a list."""
    entries = scored if isinstance(scored, (list, tuple)) else [scored]
    return [group for group in entries if group]


def collate(items: Sequence[ScoredDataItem]) -> ScoredDataGroup:
    """Stack scored sequences into a group; a field that no item has stays absent.

    Sampling parameters that differ between items become per-sequence overrides. Raises
    InvalidGroup: only some items have an optional field.
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
    for name in ("finish_reasons", "routed_experts", "outcomes", "sampling"):
        if any(row.get(name) for row in rows):
            group[name] = [row.get(name) or _UNNAMED.get(name) for row in rows]
    group_overrides: dict[str, Any] = {}
    for row in rows:
        group_overrides |= row.get("group_overrides") or {}
    if group_overrides:
        group["group_overrides"] = group_overrides
    params, own_params = _split_shared([row.get("generation_params") or {} for row in rows])
    if params:
        group["generation_params"] = params
    overrides = [{**own, **(row.get("overrides") or {})} for own, row in zip(own_params, rows)]
    if any(overrides) or any(row.get("overrides") is not None for row in rows):
        group["overrides"] = overrides
    if any(row.get("metadata") for row in rows):
        facts = [row_facts(row.get("metadata") or {}, row.get("sampling")) for row in rows]
        means = mean_metrics((row.get("metadata") or {}).get("metrics") for row in rows)
        group["metadata"] = {"metrics": means} | ({"rows": facts} if any(facts) else {})
    return cast(ScoredDataGroup, group)


def row_facts(metadata: Mapping[str, Any], sampling: Sequence[Any] | None) -> dict[str, Any]:
    """Facts of a row for explorers, bounded in size: an entry of ``metadata.rows``.

    Example: {"metrics": {"exact": 1.0}, "timings": {"generate": 0.8}, "turns": 2}
    """
    facts: dict[str, Any] = {
        name: dict(itertools.islice(values.items(), MAX_ROW_NUMBERS))
        for name in ("metrics", "timings")
        if (values := metadata.get(name))
    }
    turns = metadata.get("turns", len(sampling) if sampling else None)
    counts = {"turns": turns, "tool_calls": metadata.get("tool_calls")}
    facts |= {name: count for name, count in counts.items() if count is not None}
    if role := metadata.get("role"):
        facts["role"] = str(role)[:MAX_ROLE_CHARACTERS]
    if judge := metadata.get("judge"):
        facts["judge"] = str(judge)[:MAX_JUDGE_CHARACTERS]
    return facts


def mean_metrics(metrics: Iterable[Mapping[str, float] | None]) -> dict[str, float]:
    """The mean of each metric over the mappings that have it."""
    return {name: sum(values) / len(values) for name, values in _values(metrics).items()}


def standard_errors(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The standard error of each mean of :func:`mean_metrics`, from two mappings on.

    The mappings are independent: the means of items, each over its samples, which are not. So
    the items are the clusters of Miller (2024), "Adding Error Bars to Evals", arXiv 2411.00640:
    with as many samples of each item this is their clustered standard error, times
    sqrt(items / (items - 1)).
    """
    return {
        name: statistics.stdev(values) / math.sqrt(len(values))
        for name, values in _values(metrics).items()
        if len(values) > 1
    }


def _values(metrics: Iterable[Mapping[str, float] | None]) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = {}
    for metric in metrics:
        for name, value in (metric or {}).items():
            seen.setdefault(name, []).append(float(value))
    return seen


def _all_or_none(name: str, rows: Sequence[Mapping[str, Any]]) -> list[Any] | None:
    values = [row.get(name) for row in rows]
    missing = [i for i, value in enumerate(values) if value is None]
    if len(missing) == len(values):
        return None
    if missing:
        raise InvalidGroup(name, f"[{missing[0]}]", "missing, but other sequences have it")
    return values


def _split_shared(
    params: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The entries equal in all mappings, and the remaining entries of each mapping."""
    first = params[0] if params else {}
    shared = {
        k: v for k, v in first.items() if all(k in row and row[k] == v for row in params)
    }
    return shared, [{k: v for k, v in row.items() if k not in shared} for row in params]


# --- rows without a score --------------------------------------------------------------


def group_size_of(group: Mapping[str, Any], group_size: int) -> int:
    """Expected number of sequences: the override of the group, else ``group_size``."""
    return int((group.get("group_overrides") or {}).get("group_size") or group_size)


def without_unscored(group: ScoredDataGroup) -> ScoredDataGroup:
    """The group without its rows whose score is None; a missing score is not 0."""
    scores = group.get("scores")
    if scores is None or not any(score is None for score in scores):
        return group
    return _group_of(group, [i for i, score in enumerate(scores) if score is not None])


def unscored_rows(group: ScoredDataGroup) -> ScoredDataGroup:
    """The group of the rows that :func:`without_unscored` leaves out."""
    return _group_of(group, [i for i, s in enumerate(group["scores"]) if s is None])


def _group_of(group: ScoredDataGroup, kept: Sequence[int]) -> ScoredDataGroup:
    """The rows ``kept`` of a group."""
    rows = len(group["scores"])
    fields: Mapping[str, Any] = group
    shorter = {
        name: [value[i] for i in kept] if _one_per_row(name, value, rows) else value
        for name, value in fields.items()
    }
    metadata = group.get("metadata") or {}
    if len(metadata.get("rows") or ()) == rows:
        shorter["metadata"] = {**metadata, "rows": [metadata["rows"][i] for i in kept]}
    return cast(ScoredDataGroup, shorter)


def _one_per_row(name: str, values: Any, rows: int) -> bool:
    return name in PER_ROW and hasattr(values, "__len__") and len(values) == rows


def score_problem(item: Mapping[str, Any]) -> str | None:
    """Why the score of a sample is invalid; None if it is finite or absent."""
    score = item.get("scores")
    try:
        usable = score is None or math.isfinite(score)
    except TypeError:
        return f"a score is one number, not a {type(score).__name__}"
    return (
        None if usable else f"the score is {score}, not a finite number: None means no score"
    )


# --- plain values ----------------------------------------------------------------------

WIRE_FIELDS = frozenset(ScoredData.__struct_fields__)
_SCALARS = frozenset({int, float, str, bool, type(None)})


def plain(value: Any) -> Any:
    """``value`` with arrays, numpy scalars, bytes and pictures converted to JSON values.

    A picture with ``_repr_png_``, for example a picture of PIL, becomes the base64 text of its
    PNG form.
    """
    if type(value) in _SCALARS:
        return value
    if isinstance(value, str):
        return str.__str__(value)  # a Reply is a subclass, which msgspec refuses
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        # A row of 10^4 numbers is common: a single check for the whole row.
        if _SCALARS.issuperset(map(type, value)):
            return list(value)
        return [plain(entry) for entry in value]
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    to_list = getattr(value, "tolist", None)
    if to_list is not None:
        return to_list()
    as_png = getattr(value, "_repr_png_", None)
    if as_png is not None:
        return base64.b64encode(as_png()).decode("ascii")
    return value


def unknown_fields(group: Mapping[str, Any]) -> list[str]:
    """Keys that the wire record does not have; they are not sent."""
    return sorted(group.keys() - WIRE_FIELDS)


def item_label(item: Any) -> str:
    """A short name of an item: its ``id`` if present, else its repr; <= 200 characters."""
    identity = item.get("id") if isinstance(item, Mapping) else None
    return str(identity if identity is not None else repr(item))[:200]


def content_digest(value: Any) -> str:
    """SHA-256 of the value as JSON with sorted keys; objects without a JSON form by their repr."""
    text = json.dumps(plain(value), sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def task_digest(item: Any) -> str:
    """Digest of the task of an item, without its place and epoch."""
    return content_digest(item["task"] if is_placed(item) else item)[:TASK_DIGITS]


def is_placed(item: Any) -> bool:
    """Whether an item belongs to a function: a task with a place in the data.

    A class may hand out mappings with a field ``task``, equal in many items.
    """
    return isinstance(item, Mapping) and PLACED_KEYS <= item.keys()


def with_metadata(group: ScoredDataGroup, **metadata: Any) -> ScoredDataGroup:
    """A copy of ``group`` with ``metadata`` added; existing entries are kept."""
    copy = ScoredDataGroup(**group)
    copy["metadata"] = {**metadata, **(group.get("metadata") or {})}
    return copy
