"""Texts of the rows of stored groups: prompt, answer, messages, named rewards, agent.

messages were kept    prompt: all before the last reply; answer: the last reply
tokens only           prompt: the tokens before the first trained one; answer: the rest, decoded
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from atroposlib.api.archive.index import Index
from atroposlib.api.codec import read_group
from atroposlib.api.codec.formats import JSON_MEDIA
from atroposlib.api.store.sql.payloads import StoredPayloads
from atroposlib.errors import CorruptPayload, InvalidGroup
from atroposlib.text.messages import turns
from atroposlib.utils.tokenizers.texts import exact_texts
from atroposlib.wire.binary import PackedGroup
from atroposlib.wire.numbers import finite_float
from atroposlib.wire.safetensors import MalformedBody

MAX_NUMBERS = 64  # numbers of a row that an environment may add
BY_ROW = ("rows", "named_rewards", "untrained")  # lists of metadata with an entry for each row
TOTAL = "reward"  # among an environment's numbers: the score, which is another column


class RowTexts(NamedTuple):
    """Texts of a row. Unknown is None: the bytes are freed, or nothing was kept."""

    prompt: str | None = None
    answer: str | None = None
    messages: list[dict[str, Any]] | None = None
    rewards: Mapping[str, float] = {}
    agent: str | None = None
    metadata: Mapping[str, Any] | None = None  # of the group, and above it of the row


# --- bytes ----------------------------------------------------------------------------


def stored_payloads(
    index: Index, payloads: StoredPayloads, gids: Iterable[int]
) -> dict[int, bytes]:
    """The payloads of groups by id, without groups whose bytes are freed or damaged.

    A negative id is that of a dropped group, of which an environment sent a sample.
    """
    wanted = list(dict.fromkeys(gids))
    kept = [gid for gid in wanted if gid >= 0]
    read: dict[int, bytes] = {}
    while kept:
        try:
            read = dict(zip(kept, payloads.read(kept, retired=True)))
            break
        except CorruptPayload as error:
            kept = [gid for gid in kept if gid not in error.gids]
    for gid in wanted:
        if -(2**63) < gid < 0:
            sql = "SELECT sample, media FROM drop_sample WHERE id = ? AND sample IS NOT NULL"
            for data, media in index.read(sql, (-gid,)):
                is_json = media == "json"
                read[gid] = read_group(data, JSON_MEDIA).payload if is_json else data
    return read


# --- texts ----------------------------------------------------------------------------


def texts_of_rows(
    groups: Mapping[int, bytes],
    places: Iterable[tuple[int, int]],
    decoder: Callable[[], Any],
    answer_tokens: int | None = None,
) -> list[RowTexts]:
    """Texts of the rows at ``places``, (group id, row).

    Args:
        groups: payloads by id; a row of a group without payload has no text.
        decoder: gives the tokenizer, when it is needed; None leaves texts out that only tokens
            have.
        answer_tokens: decode that many tokens of each answer, and no prompt; None: everything.
    """
    unpacked: dict[int, list[UndecodedRow]] = {}
    for gid, payload in groups.items():
        with suppress(InvalidGroup, MalformedBody):
            unpacked[gid] = _rows_of(PackedGroup(payload), answer_tokens)
    empty = UndecodedRow(RowTexts())
    rows = []
    for gid, at in places:
        group = unpacked.get(gid, ())
        rows.append(group[at] if at < len(group) else empty)
    texts = {
        tuple(tokens): "" for row in rows for tokens in (row.prompt, row.answer) if tokens
    }
    if texts:
        tokenizer = decoder()
        decoded = [] if tokenizer is None else exact_texts(tokenizer, list(texts))
        texts = {(): "", **dict(zip(texts, decoded))}
    return [row.with_texts(texts) for row in rows]


@dataclass(frozen=True, slots=True)
class UndecodedRow:
    """Known facts of a row, and the tokens of a row whose messages were not kept."""

    known: RowTexts
    prompt: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()

    def with_texts(self, texts: Mapping[tuple[int, ...], str]) -> RowTexts:
        if not (self.prompt or self.answer):
            return self.known
        prompt, answer = texts.get(self.prompt), texts.get(self.answer)
        return self.known._replace(prompt=prompt, answer=answer)


def _rows_of(group: PackedGroup, answer_tokens: int | None) -> list[UndecodedRow]:
    columns = group.head
    about = columns.rest_value("metadata") or {}
    messages = columns.rest_value("messages")
    agent = about.get("endpoint")
    agent = None if agent is None else str(agent)
    rows: list[UndecodedRow] = []
    # The bytes fit their digest and were checked at their arrival, so they are only read here.
    tokens = np.concatenate([*group.chunks("tokens")])
    trained = np.concatenate([*group.chunks("mask")])
    start = 0
    for row, length in enumerate(columns.seq_lens.tolist()):
        rewards = named_rewards(about, row)
        metadata = row_metadata(about, row)
        if messages and messages[row]:
            prompt, answer = prompt_and_answer(messages[row])
            known = RowTexts(prompt, answer, messages[row], rewards, agent, metadata)
            rows.append(UndecodedRow(known))
        else:
            known = RowTexts(rewards=rewards, agent=agent, metadata=metadata)
            own = trained[start : start + length]
            first = int(own.argmax())
            middle = start + (first if own[first] else length)
            begin, end = start, start + length
            if answer_tokens is not None:
                begin, end = middle, min(middle + answer_tokens, end)
            before, after = tokens[begin:middle].tolist(), tokens[middle:end].tolist()
            rows.append(UndecodedRow(known, tuple(before), tuple(after)))
        start += length
    return rows


def row_metadata(about: Mapping[str, Any], row: int) -> dict[str, Any]:
    """The metadata of a group, overridden by the entries of the row."""
    rows = about.get("rows")
    own = rows[row] if isinstance(rows, list) and row < len(rows) else None
    shared = {name: value for name, value in about.items() if name not in BY_ROW}
    return {**shared, **own} if isinstance(own, dict) else shared


def named_rewards(about: Mapping[str, Any], row: int) -> dict[str, float]:
    """The named rewards of a row among the metadata of its group."""
    named, rows = about.get("named_rewards"), about.get("rows")
    if isinstance(named, list) and row < len(named):
        return reported_numbers(named[row])
    own = rows[row] if isinstance(rows, list) and row < len(rows) else None
    metrics = reported_numbers(own.get("metrics") if isinstance(own, dict) else None)
    return {name: value for name, value in metrics.items() if name != TOTAL}


def reported_numbers(values: Any) -> dict[str, float]:
    """Finite numbers among the values that an environment reported, at most ``MAX_NUMBERS``."""
    numbers: dict[str, float] = {}
    for name, value in values.items() if isinstance(values, dict) else ():
        number = finite_float(value)
        if number is not None and len(numbers) < MAX_NUMBERS:
            numbers[str(name)[:200]] = number
    return numbers


def prompt_and_answer(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """The text before the last reply, and that reply; None: there is no reply."""
    replies = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    last = replies[-1] if replies else len(messages)
    prompt = "\n\n".join(text_of_turn(message) for message in messages[:last])
    return prompt, text_of_turn(messages[last]) if replies else None


def text_of_turn(message: Mapping[str, Any]) -> str:
    """The text of a message, a line for each call of a tool; pictures are left out."""
    content = message.get("content")
    if isinstance(content, str) and not message.get("tool_calls"):
        return content
    lines = []
    for label, content in turns(message):
        if isinstance(content, list):
            parts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "\n".join(part for part in parts if isinstance(part, str))
        text = content if isinstance(content, str) else "" if content is None else f"{content}"
        lines.append(f"{label}: {text}" if label == "tool call" else text)
    return "\n".join(lines)
