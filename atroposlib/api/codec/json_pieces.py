"""Parser of large JSON bodies in pieces: memory for one chunk of numbers, not for all of them.

    pieces -> Structure -> split_list -> one group -> members -> numbers, 128 KiB at a time

simdjson needs 12 bytes for a number of two. So only the places of rows and members are
searched in the whole text, and each row is parsed alone, by as many chunks as it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import simdjson

from atroposlib.wire.binary import MAX_FRAMES
from atroposlib.wire.columns import MAX_ROWS
from atroposlib.wire.safetensors import Array, MalformedBody

CHUNK_BYTES = 128 * 2**10
GAP_BYTES = 2**16  # a number, or the blanks between two members
_MAX_EDGES = 2**14  # in a chunk
_MAX_MEMBERS = 64
BLANKS = b" \t\r\n"
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
                between += piece[at:place].translate(None, BLANKS) + piece[place : place + 1]
            at, inside = place + inside, not inside
        if inside:
            element += piece[at:]
        else:
            between += piece[at:].translate(None, BLANKS)
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
    _require(not body[:opened].strip(BLANKS) and body[opened : opened + 1] == b"{")
    place = next(edges, -1)
    _require(not _gap(body, opened + 1, place).strip(BLANKS))
    while _byte(body, place) == b'"':
        ends = next(edges, -1)
        name = body[place + 1 : ends].decode("latin-1")
        _require(name not in found and len(found) < _MAX_MEMBERS)
        _require(name.isascii() and name.isprintable() and "\\" not in name)
        place = next(edges, -1)
        gap = _gap(body, ends + 1, place)
        colon = ends + 2 + gap.index(b":") if gap.lstrip(BLANKS)[:1] == b":" else 0
        begins = _after_blanks(body, colon)
        _require(0 < colon <= begins <= place)
        if begins == place:  # a string, list or object
            last = next(edges, -1)
            found[name] = slice(place, last + 1)
            place = next(edges, -1)
            gap = _gap(body, last + 1, place)
        else:  # a number or a word
            text = bytes(body[begins:place]).rstrip(BLANKS)
            value = text.removesuffix(b",").rstrip(BLANKS)
            _require(value.isalnum() or not value.translate(None, b"0123456789+-.eE"))
            found[name] = slice(begins, begins + len(value))
            gap = text[len(value) :]
        comma = b"," if _byte(body, place) == b'"' else b""
        _require(gap.strip(BLANKS) == comma)
    _require(_byte(body, place) == b"}" and not body[place + 1 :].strip(BLANKS))
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
    _require(start <= end <= start + GAP_BYTES)
    return bytes(body[start:end])


def _after_blanks(body: bytes | bytearray, start: int) -> int:
    match = _BLANK.match(body, start)
    return match.end() if match else start


# --- numbers ----------------------------------------------------------------------------

# The index of the row, the counts of lists in it (None: plain numbers), the numbers.
Chunk = tuple[int, Array | None, Array]


def each_chunk(
    body: bytes | bytearray, place: slice, dtype: Any, *, lists: bool = False
) -> Iterator[Chunk]:
    """The numbers of a list of rows, a chunk at a time.

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
            _require(cut - begin <= CHUNK_BYTES + GAP_BYTES)
            counts, values = _parsed(parser, b"[%b]" % bytes(body[begin:cut]), dtype, lists)
            _require(begin == at + 1 or len(values if counts is None else counts))
            yield row, counts, values
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
