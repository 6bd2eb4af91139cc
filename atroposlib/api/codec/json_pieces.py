"""Parser of large JSON bodies in pieces: memory for one chunk of numbers, not for all of them.

    pieces -> Structure -> split_list -> one group -> members -> numbers, 128 KiB at a time

simdjson needs 12 bytes for a number of two. So only the places of rows and members are
searched in the whole text, and each row is parsed alone, by as many chunks as it needs. Unlike
the full decoder of small bodies, it accepts of the type slips of old clients only an empty
list in an optional field, and bools as scores.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import simdjson

from atroposlib.api.codec.json_columns import KEYS
from atroposlib.errors import InvalidGroup
from atroposlib.wire import MASKED, PER_SEQUENCE, PER_TOKEN
from atroposlib.wire.binary import MAX_FRAMES
from atroposlib.wire.columns import (
    FLOATS,
    MAX_ROWS,
    MAX_TOKENS,
    REST,
    Columns,
    check_lengths,
    check_rest,
    joined_choices,
    without_values,
)
from atroposlib.wire.routing import RoutedExperts, stacked
from atroposlib.wire.safetensors import Array, MalformedBody

CHUNK_BYTES = 128 * 2**10
# A non-numeric member becomes Python objects, except large images, which are texts.
MAX_REST_BYTES = 8 * 2**20
MAX_REST_VALUES = 2**17
OPTIONAL_LISTS = (*PER_SEQUENCE[1:], *PER_TOKEN)  # scores are never optional
_GAP_BYTES = 2**16  # a number, or the blanks between two members
_MAX_EDGES = 2**14  # in a chunk
_BLANKS = b" \t\r\n"
_BLANK = re.compile(rb"[ \t\r\n]*")
_ROW_OF_LISTS_END = re.compile(rb"\][ \t\r\n]*\]")
_QUOTE, _OPEN, _CLOSE = ord('"'), 1, -1
_BROKEN = "the body is not valid JSON"


class Structure:
    """Finds the quotes and brackets of a JSON text that lie outside of strings."""

    def __init__(self) -> None:
        self.depth = 0
        self._quotes = 0  # so far
        self._escape = False  # the last byte escapes the next one

    def feed(self, piece: bytes) -> tuple[Array, Array, Array]:
        """Places in ``piece``, +1, -1 or 0 (a quote) at each, and the depth after each."""
        text = np.frombuffer(piece, np.uint8)
        quotes = np.flatnonzero(text == _QUOTE)
        if self._escape or b"\\" in piece:
            # The escape of the last piece comes first, so that all places are one higher.
            carried = np.concatenate([[ord("\\") if self._escape else 0], text])
            escaped = _escaped(carried) - 1
            quotes = np.setdiff1d(quotes, escaped, assume_unique=True)
            self._escape = bool(len(escaped)) and int(escaped[-1]) == len(text)
        folded = text | 0x20  # { of [ and {, } of ] and }
        brackets = np.flatnonzero(folded >= ord("{"))
        kinds = folded[brackets]
        brackets = brackets[(kinds == ord("{")) | (kinds == ord("}"))]
        inside = (np.searchsorted(quotes, brackets) + self._quotes) % 2
        brackets = brackets[inside == 0]
        self._quotes += len(quotes)
        places = np.concatenate([quotes, brackets])
        steps = np.concatenate(
            [np.zeros(len(quotes), np.int64), ord("|") - folded[brackets].astype(np.int64)]
        )
        order = np.argsort(places, kind="stable")
        places, steps = places[order], steps[order]
        depths = self.depth + np.cumsum(steps)
        self.depth = int(depths[-1]) if len(depths) else self.depth
        return places, steps, depths


def _escaped(text: Array) -> Array:
    """Positions after an odd number of backslashes."""
    slashes = np.flatnonzero(text == ord("\\"))
    first = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)  # of each run
    lengths = np.diff(first, append=len(slashes))
    odd = lengths % 2 == 1
    escaped: Array = slashes[first[odd]] + lengths[odd]
    return escaped


def split_list(pieces: Iterable[bytes]) -> Iterator[bytearray]:
    """The elements of a JSON list of objects, as soon as each is complete.

    They are valid JSON only if each of them is parsed without error.

    Raises:
        MalformedBody: at the end at the latest, if it is no such list.
    """
    structure, element, between = Structure(), bytearray(), bytearray()
    inside = False
    for piece in pieces:
        places, steps, depths = structure.feed(piece)
        edges = places[(steps == _OPEN) & (depths == 2) | (steps == _CLOSE) & (depths == 1)]
        at = 0
        for place in edges.tolist():
            if inside:
                element += piece[at : place + 1]
                yield element
                element = bytearray()
                if len(between) > 2 * MAX_FRAMES:
                    raise MalformedBody(f"more than {MAX_FRAMES} groups: send fewer at a time")
            else:
                between += piece[at:place].translate(None, _BLANKS) + piece[place : place + 1]
            at, inside = place + inside, not inside
        if inside:
            element += piece[at:]
        else:
            between += piece[at:].translate(None, _BLANKS)
    if inside or between != b"[" + b",".join([b"{"] * between.count(b"{")) + b"]":
        raise MalformedBody(_BROKEN)


def members(body: bytes | bytearray) -> dict[str, slice]:
    """The place of each value of a JSON object, by its key.

    Raises:
        MalformedBody: it is no object, or has a key twice.
    """
    found: dict[str, slice] = {}
    edges = _outer_edges(body)
    opened = next(edges, 0)
    _require(not body[:opened].strip(_BLANKS) and body[opened : opened + 1] == b"{")
    place = next(edges, -1)
    while _byte(body, place) == b'"':
        ends = next(edges, -1)
        name = body[place + 1 : ends].decode("latin-1")
        _require(name not in found and len(found) < 2 * len(KEYS))
        _require(name.isascii() and name.isprintable() and "\\" not in name)
        place = next(edges, -1)
        gap = _gap(body, ends + 1, place)
        colon = ends + 2 + gap.index(b":") if gap.lstrip(_BLANKS)[:1] == b":" else 0
        begins = _after_blanks(body, colon)
        _require(0 < colon <= begins <= place)
        if begins == place:  # a string, list or object
            last = next(edges, -1)
            found[name] = slice(place, last + 1)
            place = next(edges, -1)
            gap = _gap(body, last + 1, place)
        else:  # a number or a word
            text = bytes(body[begins:place]).rstrip(_BLANKS)
            value = text.removesuffix(b",").rstrip(_BLANKS)
            _require(value.isalnum() or not value.translate(None, b"0123456789+-.eE"))
            found[name] = slice(begins, begins + len(value))
            gap = text[len(value) :]
        comma = b"," if _byte(body, place) == b'"' else b""
        _require(gap.strip(_BLANKS) == comma)
    _require(_byte(body, place) == b"}" and not body[place + 1 :].strip(_BLANKS))
    _require(next(edges, None) is None)
    return found


def _outer_edges(body: bytes | bytearray) -> Iterator[int]:
    """Places of its braces, and of the keys, strings, lists and objects directly in it."""
    structure = Structure()
    for start in range(0, len(body), CHUNK_BYTES):
        places, steps, depths = structure.feed(bytes(body[start : start + CHUNK_BYTES]))
        outer = np.where(steps == _OPEN, depths <= 2, depths <= 1)
        _require(np.count_nonzero(outer) <= _MAX_EDGES)
        yield from (places[outer] + start).tolist()
    _require(structure.depth == 0)


def _require(holds: Any) -> None:
    if not holds:
        raise MalformedBody(_BROKEN)


def _byte(body: bytes | bytearray, place: int) -> bytes:
    return bytes(body[place : place + 1]) if place >= 0 else b""


def _gap(body: bytes | bytearray, start: int, end: int) -> bytes:
    _require(start <= end <= start + _GAP_BYTES)
    return bytes(body[start:end])


def _after_blanks(body: bytes | bytearray, start: int) -> int:
    match = _BLANK.match(body, start)
    return match.end() if match else start


# --- numbers ----------------------------------------------------------------------------

# Receives the index of the row, the counts of lists in it (None: plain numbers), the numbers.
Sink = Callable[[int, Array | None, Array], None]


def each_chunk(
    body: bytes | bytearray, place: slice, dtype: Any, sink: Sink, *, lists: bool = False
) -> None:
    """Call ``sink`` with the numbers of a list of rows, a chunk at a time.

    Args:
        dtype: np.int64, which accepts integers only, or np.float64.
        lists: each row is a list of lists of numbers.

    Raises:
        ValueError, TypeError: it is no such list.
    """
    parser = simdjson.Parser()
    at, last = place.start + 1, place.stop - 1
    _require(body[place.start] == ord("[") and body[last] == ord("]"))
    for row in range(MAX_ROWS):
        at = _after_blanks(body, at)
        _require(body[at] == ord("["))
        match = _ROW_OF_LISTS_END.search(body, at, last) if lists else None
        end = match.end() - 1 if match else body.find(b"]", at, last)
        begin = at + 1
        while begin <= end:
            cut = body.find(b"]" if lists else b",", begin + CHUNK_BYTES, end)
            cut = end if cut < 0 else cut + lists
            _require(cut - begin <= CHUNK_BYTES + _GAP_BYTES)
            counts, values = _parsed(parser, b"[%b]" % bytes(body[begin:cut]), dtype, lists)
            _require(begin == at + 1 or len(values if counts is None else counts))
            sink(row, counts, values)
            begin = _after_blanks(body, cut)
            _require(begin == end or body[begin] == ord(","))
            begin += 1
        at = _after_blanks(body, end + 1)
        if at == last:
            return
        _require(0 <= end < at and body[at] == ord(","))
        at += 1
    raise ValueError(f"more than {MAX_ROWS} rows")


def _parsed(parser: Any, text: bytes, dtype: Any, lists: bool) -> tuple[Array | None, Array]:
    document = parser.parse(text)
    counts = None
    if lists:
        counts = np.array([len(one) for one in document], np.int64)
        _require(text.count(b"[") == 1 + len(counts))
    packed = document.as_buffer(of_type="i" if dtype is np.int64 else "d")
    return counts, np.frombuffer(packed, dtype)


# --- a group ------------------------------------------------------------------------------

_INT32 = np.iinfo(np.int32)
_LEAST = {"tokens": 0, "masks": _INT32.min, "versions": -1, "distill_token_ids": _INT32.min}
_SCALARS = {"env_id": int, "group_id": str, "idempotency_key": str, "incarnation": int}
_ADVANTAGES, _IMAGES = "advantages", "images"


class LargeGroup:
    """The members of a JSON group, read and checked in pieces.

    Args:
        keep: keep the numbers too, for ``columns``; else only what the queue needs of them.

    Raises:
        MalformedBody: the body cannot be parsed.
        InvalidGroup: names the field and the row, never a value.
    """

    def __init__(self, body: bytes | bytearray, *, keep: bool) -> None:
        self._body, self._keep = body, keep
        self.places = members(body)
        self.mended: dict[str, bytes] = {}  # values to write instead of those in ``places``
        self.n_tokens = 0  # trained positions
        self.version: int | None = None
        self._seq_lens: Array = np.empty(0, np.int64)
        self.columns = self._columns()

    def _columns(self) -> Columns:
        given = [name for name in self.places if self._given(name)]
        tokens, counts, self._seq_lens = self._numbers("tokens")
        check_lengths(self._seq_lens)
        floats = {name: self._fitting(name)[0] for name in FLOATS[:2] if name in given}
        for name in set(given).difference(KEYS):  # kept, and ignored by all readers
            self._decoded(name, Any)
        rest = {name: self._rest(name) for name in REST[:-1] if name in given}
        if _ADVANTAGES in given:
            with suppress(InvalidGroup):
                floats[_ADVANTAGES] = self._fitting(_ADVANTAGES)[0]
            if _ADVANTAGES not in floats:
                rest[_ADVANTAGES] = self._rest(_ADVANTAGES)
        images = {_IMAGES: rest.pop(_IMAGES)} if _is_large(rest.get(_IMAGES, b"")) else {}
        choices = [
            self._fitting(name, lists=True)[1::-1] if name in given else None
            for name in ("distill_token_ids", "distill_logprobs")
        ]
        columns = Columns(
            seq_lens=self._seq_lens,
            tokens=tokens,
            masks=self._fitting("masks")[0],
            scores=self._scores(),
            floats=floats,
            versions=self._fitting("versions")[0] if "versions" in given else None,
            distilled=joined_choices(*choices),
            rest=rest,
            **{
                name: self._decoded(name, kind)
                for name, kind in _SCALARS.items()
                if name in given
            },
        )
        if "routed_experts" in given:
            routed = self._decoded("routed_experts", list[RoutedExperts | None])
            columns = replace(columns, routed_experts=stacked(routed, self._seq_lens))
        check_rest(columns)
        columns.rest.update(images)
        return columns

    def _given(self, name: str) -> bool:
        """Whether a member has a value; old clients write [] for an absent list."""
        place = self.places[name]
        text = self._body[place.start : min(place.stop, place.start + _GAP_BYTES)]
        if name in OPTIONAL_LISTS and text.translate(None, _BLANKS) == b"[]":
            self.mended[name] = b"null"
        return text != b"null" and name not in self.mended

    # --- numbers ------------------------------------------------------------------

    def _numbers(self, name: str, *, lists: bool = False) -> tuple[Array, Array, Array]:
        """Numbers and counts of a member, both empty if not kept, and the lengths of its rows."""
        lengths: list[int] = []
        kept: list[Array] = []
        all_counts: list[Array] = []

        def sink(row: int, counts: Array | None, values: Array) -> None:
            lengths.extend([0] * (row + 1 - len(lengths)))
            lengths[row] += len(values if counts is None else counts)
            if counts is not None:
                all_counts.append(counts.astype(np.int32))
            elif lengths[row] > MAX_TOKENS:
                raise InvalidGroup(name, f"[{row}]", f"more than {MAX_TOKENS} tokens")
            self._note(name, row, values)
            if self._keep:
                kept.append(values.astype(np.int32) if name in _LEAST else values)

        dtype = np.int64 if name in _LEAST else np.float64
        if name not in self.places:
            raise InvalidGroup(name, "", "missing")
        try:
            each_chunk(self._body, self.places[name], dtype, sink, lists=lists)
        except InvalidGroup:
            raise
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            kind = "integers" if name in _LEAST else "numbers"
            raise InvalidGroup(name, "", f"not a list of rows of {kind}") from error
        return _joined(kept), _joined(all_counts), np.array(lengths, np.int64)

    def _note(self, name: str, row: int, values: Array) -> None:
        """Check the values, and note what the queue needs of them."""
        if not len(values):
            return
        low, high = values.min(), values.max()
        if name not in _LEAST:
            if not (np.isfinite(low) and np.isfinite(high)):
                raise InvalidGroup(name, f"[{row}]", "not a finite number")
        elif low < _LEAST[name] or high > _INT32.max:
            problem = f"numbers lie in {_LEAST[name]} .. 2^31 - 1"
            raise InvalidGroup(name, f"[{row}]", problem)
        if name == "masks":
            self.n_tokens += int(np.count_nonzero(values != MASKED))
        elif name == "versions" and high >= 0:
            oldest = int(values[values >= 0].min())
            self.version = oldest if self.version is None else min(oldest, self.version)

    def _fitting(self, name: str, *, lists: bool = False) -> tuple[Array, Array]:
        """Numbers and counts of a member that has one entry per token."""
        values, counts, lengths = self._numbers(name, lists=lists)
        if not np.array_equal(lengths, self._seq_lens):
            raise InvalidGroup(name, "", "not one entry per token")
        return values, counts

    def _scores(self) -> Array:
        given: list[float | bool] = self._decoded("scores", list[float | bool])
        if len(given) != len(self._seq_lens):
            raise InvalidGroup("scores", "", "not one per row")
        if any(isinstance(one, bool) for one in given):
            self.mended["scores"] = msgspec.json.encode([float(one) for one in given])
        return np.array(given, np.float64)

    # --- other members ------------------------------------------------------------

    def _decoded(self, name: str, kind: Any) -> Any:
        if name not in self.places:
            raise InvalidGroup(name, "", "missing")
        try:
            return msgspec.json.decode(self._rest(name), type=kind)
        except (ValueError, RecursionError) as error:
            known = name if name in KEYS else "body"
            raise InvalidGroup(known, "", without_values(str(error))) from error

    def _rest(self, name: str) -> bytes:
        """A member as JSON, within the bounds on what its decoding takes."""
        text = bytes(self._body[self.places[name]])
        if name == _IMAGES and _is_large(text):
            _check_images(text)
        elif _is_large(text) or text.count(b"[") + text.count(b"{") > MAX_REST_VALUES:
            problem = f"at most {MAX_REST_BYTES} bytes and {MAX_REST_VALUES} lists and objects"
            raise InvalidGroup(name if name in KEYS else "body", "", problem)
        return text


def _is_large(text: bytes) -> bool:
    return len(text) > MAX_REST_BYTES


def _check_images(text: bytes) -> None:
    """Check texts of any length, such as base64, without a copy of them."""
    if text.count(b",") + text.count(b"[") > MAX_REST_VALUES:
        problem = f"more than {MAX_REST_VALUES} values: images are texts, such as base64"
        raise InvalidGroup(_IMAGES, "", problem)
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(text), CHUNK_BYTES):
            decoder.decode(text[start : start + CHUNK_BYTES])
        msgspec.json.decode(text, type=msgspec.Raw)
    except ValueError as error:
        raise InvalidGroup(_IMAGES, "", "not valid JSON in UTF-8") from error


def _joined(kept: list[Array]) -> Array:
    return np.concatenate(kept) if kept else np.empty(0, np.int32)
