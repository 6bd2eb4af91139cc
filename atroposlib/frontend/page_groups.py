"""Groups of a file in the form of the page of a run: facts of samples, and replies about a group.

The replies are those of the rollout API below /explore (:mod:`atroposlib.wire.explore`). Wrong
fields of a file are left out. Pure.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from atroposlib.utils.tokenizers.texts import token_texts
from atroposlib.wire import MASKED
from atroposlib.wire.explore import GroupRow, GroupView, RowView, TokenColumns
from atroposlib.wire.images import picture_url, pictures_of
from atroposlib.wire.numbers import finite_float

logger = logging.getLogger(__name__)


class Sample(NamedTuple):
    """Facts of a sample that the figures of a file count."""

    score: float | None
    named: dict[str, float | None]  # rewards
    finish: str
    trained: int | None


class ScoredSamples(NamedTuple):
    """Samples of a group; ``spread`` is the standard deviation of their scores."""

    samples: list[Sample]
    mean: float
    spread: float


def group_facts(group: Mapping[str, Any], index: int) -> ScoredSamples:
    """The facts of a line of the file; wrong fields are left out."""
    messages, scores = group.get("messages") or [], group.get("scores") or []
    if len(messages) != len(scores):
        numbers = f"{len(messages)} messages, {len(scores)} scores"
        logger.warning("group %d: %s; the rest is left out", index, numbers)
    samples = [_sample(group, g) for g in range(min(len(messages), len(scores)))]
    known = [sample.score for sample in samples if sample.score is not None]
    mean = statistics.fmean(known) if known else 0.0
    return ScoredSamples(samples, mean, statistics.pstdev(known) if known else 0.0)


def _sample(group: Mapping[str, Any], g: int) -> Sample:
    named = _row_of(_about(group), "named_rewards", g)
    masks = _row_of(group, "masks", g)
    return Sample(
        finite_float(_row_of(group, "scores", g)),
        {str(k): finite_float(v) for k, v in named.items()} if isinstance(named, dict) else {},
        str(_row_of(group, "finish_reasons", g) or ""),
        sum(label != MASKED for label in masks) if masks else None,
    )


def group_replies(
    group: Mapping[str, Any], gid: int, facts: ScoredSamples, tokenizer: Any, room: int
) -> tuple[list[GroupRow], dict[str, object], int]:
    """Rows of a group, replies about the rows, and the number of tokens in the replies."""
    about, shown = _about(group), 0
    env, item = (str(about[name]) if name in about else None for name in ("env", "item"))
    step = about.get("step") if isinstance(about.get("step"), int) else None
    scored = any(sample.score is not None for sample in facts.samples)
    messages_G = [messages_of(group, g) for g in range(len(facts.samples))]
    n_shared = shared_messages(messages_G)
    rows: list[GroupRow] = []
    replies: dict[str, object] = {f"groups/{gid}/shared": messages_G[0][:n_shared]}
    for g, sample in enumerate(facts.samples):
        own = messages_G[g][n_shared:]
        tokens = _row_view(group, (gid, g), own, tokenizer, room - shown)
        shown += tokens.to
        columns = tokens.columns
        logprobs = _of_trained(columns, columns.logprob)
        versions = _of_trained(columns, columns.version)
        row = GroupRow(
            gid=gid,
            row=g,
            env=env,
            item=item,
            step=step,
            reward=sample.score,
            n_tokens=len(_ids(group, g)) or None,
            n_trained=sample.trained,
            finish_reason=sample.finish or None,
            logprob_mean=statistics.fmean(logprobs) if logprobs else None,
            version_min=min(versions, default=None),
            version_max=max(versions, default=None),
            metrics={name: value for name, value in sample.named.items() if value is not None},
        )
        rows.append(row)
        replies[f"groups/{gid}/rows/{g}"] = tokens
    return (
        rows,
        {**replies, f"groups/{gid}": _group_view(rows, facts if scored else None)},
        shown,
    )


def shared_messages(messages_G: Sequence[list[Any]]) -> int:
    """Number of messages before the first answer with which all samples begin.

    The page holds these messages, with their pictures, only once.
    """
    first, shortest = messages_G[0], min(map(len, messages_G))
    for place in range(max(0, shortest - 1)):
        role = first[place].get("role") if isinstance(first[place], Mapping) else None
        differs = any(messages[place] != first[place] for messages in messages_G)
        if role == "assistant" or differs:
            return place
    return max(0, shortest - 1)


def _group_view(rows: list[GroupRow], facts: ScoredSamples | None) -> GroupView:
    first = rows[0]
    return GroupView(
        gid=first.gid,
        env=first.env,
        item=first.item,
        group_id=None,
        state=None,
        batch_no=None,
        step=first.step,
        n_bytes=None,
        media=None,
        archived=False,
        baseline=facts.mean if facts else None,
        spread=facts.spread if facts else None,
        life=[],
        rows=rows,
    )


def _row_view(
    group: Mapping[str, Any], place: tuple[int, int], own: list[Any], tokenizer: Any, room: int
) -> RowView:
    """Messages, pictures and tokens of a row, of which ``room`` are shown; place: (gid, row)."""
    gid, g = place
    about = {k: v for k, v in _about(group).items() if not isinstance(v, (list, dict))}
    ids = _ids(group, g)
    masks = _row_of(group, "masks", g)
    masks = masks if masks and len(masks) == len(ids) else [MASKED] * len(ids)
    end = min(len(ids), max(0, room))
    if end < len(ids):
        about = {"left out": f"the last {len(ids) - end} of {len(ids)} tokens", **about}
    columns = TokenColumns(
        id=ids[:end],
        text=None if tokenizer is None else token_texts(tokenizer, ids[:end]),
        trained=[int(label != MASKED) for label in masks[:end]],
        logprob=_column(group, "inference_logprobs", g, len(ids), end),
        version=_column(group, "versions", g, len(ids), end),
        advantage=_column(group, "advantages", g, len(ids), end),
    )
    return RowView(
        gid=gid,
        row=g,
        n_tokens=end,
        start=0,
        to=end,
        tokenizer=None if tokenizer is None else _name_of(tokenizer),
        images=[] if _has_picture(group, g) else pictures_of(group.get("images"), g),
        messages=own,
        metadata=about,
        columns=columns,
    )


def _column(group: Mapping[str, Any], name: str, g: int, length: int, end: int) -> Any:
    values = _row_of(group, name, g)
    return values[:end] if isinstance(values, list) and len(values) == length else None


def _of_trained(columns: TokenColumns, values: list[Any] | None) -> list[Any]:
    return [
        value for value, is_trained in zip(values or (), columns.trained) if is_trained == 1
    ]


def _has_picture(group: Mapping[str, Any], g: int) -> bool:
    messages = messages_of(group, g)
    contents = [turn.get("content") for turn in messages if isinstance(turn, Mapping)]
    return any(any(map(picture_url, parts)) for parts in contents if isinstance(parts, list))


def _name_of(tokenizer: Any) -> str:
    return str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)


def _ids(group: Mapping[str, Any], g: int) -> list[Any]:
    ids = _row_of(group, "tokens", g)
    return ids if isinstance(ids, list) else []


def messages_of(group: Mapping[str, Any], g: int) -> list[Any]:
    """The messages of row ``g``; a content of another form is a single message."""
    content = group["messages"][g]
    return content if isinstance(content, list) else [content]


def _about(group: Mapping[str, Any]) -> dict[str, Any]:
    about = group.get("metadata")
    return about if isinstance(about, dict) else {}


def _row_of(fields: Mapping[str, Any], name: str, g: int) -> Any:
    """The entry of row ``g`` in the list ``name``; None where the list has none."""
    values = fields.get(name)
    return values[g] if isinstance(values, list) and g < len(values) else None
