"""Places in a JSON text, and its numbers: members of an object, elements of a list, rows.

    pieces -> Structure -> split_list -> a group -> members -> rows, 128 KiB at a time

simdjson needs 12 bytes for a number of two, and its copy of an array flattens any nesting
(``[[3,[4]]]`` looks like two tokens). So rows are parsed by chunks of the text, and the shape of each
chunk is proven: it has exactly the brackets of its rows.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import simdjson

from atroposlib.wire.binary import MAX_FRAMES
from atroposlib.wire.group_arrays import MAX_ROWS
from atroposlib.wire.safetensors import Array, MalformedBody

CHUNK_BYTES = 128 * 2**10
GAP_BYTES = 2**16  # limit of a key, a number, or the blanks in between
# limit of a text, a list or an object whose end is searched token by token
_SHORT_BYTES = 2**15
_MAX_MEMBERS = 64
BLANKS = b" \t\r\n"
_BLANK = re.compile(rb"[ \t\r\n]*")
_KEY = re.compile(rb'[ \t\r\n]*("[^"\\]*(?:\\.[^"\\]*)*")[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_SCALAR = re.compile(rb"[^][{}\",: \t\r\n]+")
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)
EMPTY_LIST = re.compile(rb"\[[ \t\r\n]*\]")
_END_OF_ROW_OF_LISTS = re.compile(rb"\][ \t\r\n]*\]")
_END_OF_ROWS_OF_LISTS = re.compile(rb"\][ \t\r\n]*\][ \t\r\n]*\]")
_QUOTE, _OPEN, _CLOSE = ord('"'), 1, -1
_BROKEN = "the body is not valid JSON"

Text = bytes | bytearray


class Structure:
    """Finds the quotes and brackets of a JSON text that lie outside of strings."""

    def __init__(self) -> None:
        self.depth = 0
        self._quotes = 0  # so far
        self._escape = False  # the last byte escapes the next byte

    def feed(self, piece: Text) -> tuple[Array, Array, Array]:
        """Places in ``piece``, +1, -1 or 0 (a quote) at each, and the depth after each."""
        text = np.frombuffer(piece, np.uint8)
        quotes = np.flatnonzero(text == _QUOTE)
        if self._escape or b"\\" in piece:
            # The escape of the last piece comes first, so that all places are higher by 1.
            carried = np.concatenate([[ord("\\") if self._escape else 0], text])
            escaped = _escaped_places(carried) - 1
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


def _escaped_places(text: Array) -> Array:
    """Positions after an odd number of backslashes."""
    slashes = np.flatnonzero(text == ord("\\"))
    first = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)  # the first of each run
    lengths = np.diff(first, append=len(slashes))
    odd = lengths % 2 == 1
    escaped: Array = slashes[first[odd]] + lengths[odd]
    return escaped


def split_list(pieces: Iterable[Text]) -> Iterator[bytearray]:
    """The elements of a JSON list of objects, as soon as each is complete.

    They are valid JSON only if each element is parsed without error.

    Raises:
        MalformedBody: at the end at the latest, if it is no list of objects.
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


# --- the members of an object -------------------------------------------------------------


def member_places(body: Text, depths: dict[str, int]) -> dict[str, slice]:
    """The place of each value of a JSON object, by its key.

    The object is valid JSON only if each of these texts is parsed without error.

    Args:
        depths: of lists of numbers, by key: where their brackets close at once, they end.

    Raises:
        MalformedBody: it is no object, or has a key twice.
    """
    places: dict[str, slice] = {}
    at = _after_blanks(body, 0)
    _require(body[at : at + 1] == b"{")
    if body[(end := _after_blanks(body, at + 1)) : end + 1] == b"}":
        at = end
    while body[at : at + 1] != b"}":
        key = _KEY.match(body, at + 1, at + 1 + GAP_BYTES)
        if key is None or len(places) == _MAX_MEMBERS:
            raise MalformedBody(_BROKEN)
        name = _text_of(key[1])
        _require(name not in places)
        end = _end_of_value(body, key.end(), depths.get(name, 0))
        places[name] = slice(key.end(), end)
        at = _after_blanks(body, end)
        _require(body[at : at + 1] in (b",", b"}"))
    _require(_after_blanks(body, at + 1) == len(body))
    return places


def _text_of(text: Text) -> str:
    try:
        return msgspec.json.decode(text, type=str)
    except ValueError as error:
        raise MalformedBody(_BROKEN) from error


def _end_of_value(body: Text, begin: int, depth: int) -> int:
    first = body[begin : begin + 1]
    match: re.Match[bytes] | None
    if first == b"[" and depth:
        match = EMPTY_LIST.match(body, begin)
        if match is None and depth <= 2:
            return _end_of_rows(body, begin, depth)
        match = match or _END_OF_ROWS_OF_LISTS.search(body, begin)
    elif first in (b"[", b"{", b'"'):
        return _end_of_structure(body, begin, is_text=first == b'"')
    else:
        match = _SCALAR.match(body, begin, begin + GAP_BYTES)
    if match is None:
        raise MalformedBody(_BROKEN)
    return match.end()


def _end_of_rows(body: Text, at: int, depth: int) -> int:
    """Position where ``depth`` brackets close at once. A search for a byte is the fastest."""
    while True:
        at = body.find(b"]", at) + 1
        _require(at > 0)
        if depth == 1:
            return at
        at = _after_blanks(body, at)
        if body[at : at + 1] == b"]":
            return at + 1


def _end_of_structure(body: Text, begin: int, is_text: bool) -> int:
    """The end of a text, or of a list or an object."""
    depth = 0
    for token in _TOKEN.finditer(body, begin, begin + _SHORT_BYTES):
        kind = token[0][:1]
        depth += (kind in b"[{") - (kind in b"]}")
        if depth <= 0:
            return token.end()
    structure, quotes = Structure(), 0  # scan of a long element
    for at in range(begin, len(body), CHUNK_BYTES):
        places, steps, depths = structure.feed(bytes(body[at : at + CHUNK_BYTES]))
        if is_text:
            ends = places[steps == 0][1 - quotes :]
            quotes = min(1, quotes + int(np.count_nonzero(steps == 0)))
        else:
            ends = places[(steps == _CLOSE) & (depths == 0)]
        if len(ends):
            return at + int(ends[0]) + 1
    raise MalformedBody(_BROKEN)


def _require(holds: Any) -> None:
    if not holds:
        raise MalformedBody(_BROKEN)


def _after_blanks(body: Text, start: int) -> int:
    match = _BLANK.match(body, start)
    return match.end() if match else start


# --- rows of numbers ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Numbers of some rows, or of a part of a row."""

    lengths: Array  # numbers, or lists, of each row in this chunk
    goes_on: bool  # the first row is a further part of the last row before
    counts: Array | None  # numbers of each list; None: the rows are no lists of lists
    values: Array


def row_chunks(body: Text, place: slice, dtype: Any, lists: bool) -> Iterator[RowChunk]:
    """The numbers of a list of rows, a chunk of the text at a time.

    Args:
        dtype: np.int64, which accepts integers only, or np.float64.
        lists: each row is a list of lists of numbers.

    Raises:
        ValueError, TypeError: it is no list of these rows.
    """
    at, last = place.start + 1, place.stop - 1
    _require(body[place.start] == ord("[") and body[last] == ord("]"))
    n_rows = 0
    while True:
        at = _after_blanks(body, at)
        end = _end_of_row(body, at, last, lists)
        if end - at <= CHUNK_BYTES:
            if not lists:  # the chunk ends with the last row that fits
                end = max(end, body.rfind(b"]", end, min(at + CHUNK_BYTES, last)) + 1)
            chunk = _parsed_rows(_in_brackets(b"[", body, at, end, b"]"), dtype, lists)
            n_rows += len(chunk.lengths)
            yield chunk
        else:
            n_rows += 1
            yield from _parts_of_row(body, at, end, dtype, lists)
        if n_rows > MAX_ROWS:
            raise ValueError(f"more than {MAX_ROWS} rows")
        at = _after_blanks(body, end)
        if at == last:
            return
        _require(at < last and body[at] == ord(","))
        at += 1


def _in_brackets(opening: bytes, body: Text, begin: int, end: int, closing: bytes) -> bytes:
    with memoryview(body) as whole, whole[begin:end] as part:
        return b"".join((opening, part, closing))


def _end_of_row(body: Text, at: int, last: int, lists: bool) -> int:
    _require(body[at] == ord("["))
    match = _END_OF_ROW_OF_LISTS.search(body, at, last) if lists else None
    end = match.end() if match else body.find(b"]", at, last) + 1
    _require(end > at)
    return end


def _parts_of_row(
    body: Text, at: int, end: int, dtype: Any, lists: bool
) -> Iterator[RowChunk]:
    begin, goes_on = at + 1, False
    while begin < end:
        cut = body.find(b"]" if lists else b",", begin + CHUNK_BYTES, end - 1)
        cut = end - 1 if cut < 0 else cut + lists
        _require(cut - begin <= CHUNK_BYTES + GAP_BYTES)
        text = _in_brackets(b"[[", body, begin, cut, b"]]")
        chunk = _parsed_rows(text, dtype, lists)
        _require(len(chunk.lengths) == 1 and chunk.lengths[0] > 0)
        yield RowChunk(chunk.lengths, goes_on, chunk.counts, chunk.values)
        goes_on = True
        begin = _after_blanks(body, cut)
        _require(begin == end - 1 or body[begin] == ord(","))
        begin += 1


class _OfThread(threading.local):
    """Parsers by thread; each keeps its buffers of a chunk."""

    def __init__(self) -> None:
        self.parser = simdjson.Parser()


_of_thread = _OfThread()


def _document(text: bytes) -> Any:
    try:
        return _of_thread.parser.parse(text)
    except RuntimeError:
        # A debugger or a watchdog that keeps a frame of the last call keeps its document, and the
        # parser then refuses the next one, whose sender did nothing wrong.
        _of_thread.parser = simdjson.Parser()
        return _of_thread.parser.parse(text)


def _parsed_rows(text: bytes, dtype: Any, lists: bool) -> RowChunk:
    """The rows of a short list; no part of the parser's document is left when it returns."""
    try:
        document = _document(text)
        lengths = np.array([len(row) for row in document], np.int64)
        brackets, counts = 1 + len(lengths), None
        if lists:
            sizes = [len(choices) for row in document for choices in row]
            counts = np.array(sizes, np.int64)
            brackets += len(counts)
        packed = document.as_buffer(of_type="i" if dtype is np.int64 else "d")
    except (ValueError, TypeError, RuntimeError):
        # The traceback holds the document, and a parser with a document refuses the next document.
        _of_thread.parser = simdjson.Parser()
        raise
    _require(np.count_nonzero(np.frombuffer(text, np.uint8) == ord("[")) == brackets)
    return RowChunk(lengths, False, counts, np.frombuffer(packed, dtype))
