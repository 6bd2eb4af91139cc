"""Parsers of a JSON group into typed arrays, without a Python object per number.

simdjson parses into an internal tape; ``as_buffer`` copies the numbers of a member out of
it. ``as_buffer`` flattens any nesting (``[[3,[4]]]`` looks like two tokens), so the copy is
exact only if the shape is proven. The proof counts brackets: each numeric member has the
number that its shape needs, and the body has no further brackets except those inside the
non-numeric members. The full decoder parses bodies that are not proven here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np
import simdjson

from atroposlib.api.codec.json_pieces import (
    BLANKS,
    GAP_BYTES,
    Chunk,
    each_chunk,
    members,
)
from atroposlib.api.codec.row_facts import NumbersInChunks, RowNumbers
from atroposlib.errors import InvalidGroup
from atroposlib.wire import MASKED, PER_SEQUENCE, PER_TOKEN, ScoredData
from atroposlib.wire.columns import (
    FLOATS,
    MAX_TOKENS,
    REST,
    Columns,
    check,
    check_lengths,
    check_rest,
    fits,
    joined_choices,
    without_values,
)
from atroposlib.wire.images import IMAGES, LARGE_REST, MAX_REST_VALUES, check_images
from atroposlib.wire.routing import RoutedExperts, stacked
from atroposlib.wire.safetensors import Array

KEYS: Final = tuple(one.name for one in msgspec.structs.fields(ScoredData))
_KNOWN = frozenset(KEYS)
_FEW = 1024
_BEGINNINGS = (b"{", b" ", b"\t", b"\r", b"\n")
# A parser keeps buffers of its largest document, so a large body gets a separate parser.
_KEPT_PARSER_BYTES = 4 * 2**20


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.parser = simdjson.Parser()


_OF_THREAD = _OfThread()


class _Unproven(ValueError):
    """The body may be valid, but the fast path cannot prove it."""


def parse_columns(body: bytes | bytearray) -> tuple[Columns, frozenset[str]] | None:
    """The group in a JSON object, checked, and the keys it has; None if it is not proven.

    It never raises: the full decoder raises the error, and an exception from here would keep
    the tape alive, which makes the parser of this thread unusable.
    """
    parser = _OF_THREAD.parser if len(body) <= _KEPT_PARSER_BYTES else simdjson.Parser()
    try:
        return _proven(parser.parse(body), body)
    except (ValueError, TypeError, KeyError, RuntimeError):
        return None


def _proven(document: Any, body: bytes | bytearray) -> tuple[Columns, frozenset[str]]:
    if not isinstance(document, simdjson.Object) or len(document) > len(KEYS):
        raise _Unproven
    names = list(document.keys())
    keys = frozenset(names)
    # Of two equal keys simdjson takes the first and other parsers the last. simdjson skips a
    # byte order mark, which other parsers reject.
    if len(keys) != len(names) or not keys <= _KNOWN or body[:1] not in _BEGINNINGS:
        raise _Unproven
    members = _Members({name: one for name in names if (one := document[name]) is not None})
    columns = members.columns()
    if _hides_bracket(body) or count_byte(b"[", body) != members.brackets:
        raise _Unproven
    check(columns)
    return columns, keys


def count_byte(byte: bytes, body: bytes | bytearray) -> int:
    """Occurrences of ``byte``. ``find`` scans a body of numbers 30 times faster than
    ``count`` but stops at each place, so it serves for the first ``_FEW`` only."""
    found, place = 0, body.find(byte)
    while place >= 0 and found < _FEW:
        found, place = found + 1, body.find(byte, place + 1)
    if place < 0:
        return found
    return found + int(np.count_nonzero(np.frombuffer(body, np.uint8, -1, place) == byte[0]))


def _hides_bracket(body: bytes | bytearray) -> bool:
    """Whether a string may hold a bracket as an escape, which no count includes.

    ``in`` searches one byte 50 times faster than two, so the ``u`` is checked afterwards.
    """
    if b"\\" not in body:
        return False
    text = np.frombuffer(body, np.uint8)
    slashes = np.flatnonzero(text[:-5] == ord("\\"))  # an escape has four digits and an end
    slashes = slashes[text[slashes + 1] == ord("u")]
    digits = text[slashes[:, None] + np.arange(2, 5)] == np.frombuffer(b"005", np.uint8)
    return bool(digits.all(axis=1).any())


class _Members:
    """Copies the members out of the tape and sums the brackets that their shapes need."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self.brackets = 0
        self._seq_lens = np.empty(0, np.int64)

    def columns(self) -> Columns:
        if "routed_experts" in self._values:
            raise _Unproven  # a list of objects, for the full decoder
        self._seq_lens = np.array(_lengths(self._values["tokens"]), np.int64)
        floats = {name: self._rows(name, "d") for name in FLOATS[:2] if name in self._values}
        rest = {name: self._rest(name) for name in REST[:-1] if name in self._values}
        if (advantages := self._values.get("advantages")) is not None:
            lengths = _lengths(advantages)
            flat = self._flat(advantages, "d", 1 + len(lengths))
            if fits(lengths, self._seq_lens):
                floats["advantages"] = flat
            else:
                rest["advantages"] = bytes(advantages.mini)
        return Columns(
            seq_lens=self._seq_lens,
            tokens=self._rows("tokens", "i"),
            labels=(masks := self._rows("masks", "i")),
            trained=masks != MASKED,
            scores=self._scores(),
            floats=floats,
            versions=self._rows("versions", "i") if "versions" in self._values else None,
            distilled=joined_choices(
                self._choices("distill_token_ids", "i"), self._choices("distill_logprobs", "d")
            ),
            env_id=self._scalar("env_id", int),
            group_id=self._scalar("group_id", str),
            idempotency_key=self._scalar("idempotency_key", str),
            incarnation=self._scalar("incarnation", int),
            rest=rest,
        )

    def _flat(self, value: Any, kind: str, brackets: int) -> Array:
        if not isinstance(value, simdjson.Array):
            raise _Unproven
        # A copy, which outlives the tape. Values other than numbers raise.
        self.brackets += brackets
        dtype = np.int64 if kind == "i" else np.float64
        return np.frombuffer(value.as_buffer(of_type=kind), dtype)

    def _rows(self, name: str, kind: str) -> Array:
        rows = self._values[name]
        if not fits(_lengths(rows), self._seq_lens):
            raise _Unproven
        return self._flat(rows, kind, 1 + len(self._seq_lens))

    def _scores(self) -> Array:
        scores = self._values["scores"]
        if len(scores) != len(self._seq_lens):
            raise _Unproven
        return self._flat(scores, "d", 1)

    def _choices(self, name: str, kind: str) -> tuple[Array, Array] | None:
        if (rows := self._values.get(name)) is None:
            return None
        if not fits(_lengths(rows), self._seq_lens):
            raise _Unproven
        counts = np.array([length for row in rows for length in _lengths(row)], np.int64)
        return counts, self._flat(rows, kind, 1 + len(self._seq_lens) + len(counts))

    def _rest(self, name: str) -> bytes:
        value = self._values[name]
        if isinstance(value, (simdjson.Array, simdjson.Object)):
            text = bytes(value.mini)
        else:
            text = msgspec.json.encode(value)
        self.brackets += text.count(b"[")
        return text

    def _scalar(self, name: str, kind: type[Any]) -> Any:
        value = self._values.get(name)
        if value is not None and type(value) is not kind:  # a bool is not an id
            raise _Unproven
        if kind is str and value is not None:
            self.brackets += value.count("[")
        return value


def _lengths(rows: Any) -> list[int]:
    if not isinstance(rows, simdjson.Array):
        raise _Unproven
    return [len(row) for row in rows]


# --- a large group ------------------------------------------------------------------------

OPTIONAL_LISTS = (*PER_SEQUENCE[1:], *PER_TOKEN)  # scores are never optional

_INT32 = np.iinfo(np.int32)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_LEAST = {"tokens": 0, "masks": _INT32.min, "versions": -1, "distill_token_ids": _INT32.min}
_SCALARS = {"env_id": int, "group_id": str, "idempotency_key": str, "incarnation": int}
_ADVANTAGES = "advantages"
_NONE: Array = np.empty(0, np.int32)


class LargeGroup:
    """The members of a JSON group, read and checked in pieces.

    Unlike the full decoder of small bodies, it accepts of the type slips of old clients only an
    empty list in an optional field, and bools as scores.

    ``head`` holds what the queue needs, and empty arrays in place of entries per token.

    Raises:
        MalformedBody: the body cannot be parsed.
        InvalidGroup: names the field and the row, never a value.
    """

    def __init__(self, body: bytes | bytearray) -> None:
        self._body = body
        self.places = members(body)
        self.mended: dict[str, bytes] = {}  # values to write instead of those in ``places``
        self._numbers = NumbersInChunks()
        self.wide: set[str] = set()  # floats beyond float32
        self._seq_lens: Array = np.empty(0, np.int64)
        self.large_images: slice | None = None  # their place; they are not in ``head``
        self.head = self._columns()

    def row_numbers(self) -> list[RowNumbers]:
        """Numbers of each row, for the facts of the group."""
        return self._numbers.numbers(self.head.floats, len(self._seq_lens))

    @property
    def n_tokens(self) -> int:
        """Trained positions."""
        return sum(map(self._numbers.trained, range(len(self._seq_lens))))

    @property
    def version(self) -> int | None:
        return min(self._numbers.low.values(), default=None)

    def _columns(self) -> Columns:
        given = [name for name in self.places if self._given(name)]
        _, self._seq_lens = self._counted("tokens")
        check_lengths(self._seq_lens)
        masks = self._fitting("masks")  # before the floats, of which trained ones are summed
        floats = {name: self._fitting(name) for name in FLOATS[:2] if name in given}
        for name in set(given).difference(KEYS):  # kept, and ignored by all readers
            self._decoded(name, Any)
        if (images := self.places.get(IMAGES, slice(0, 0))).stop - images.start > LARGE_REST:
            self.large_images = images
            with memoryview(self._body) as body, body[images] as text:
                check_images(text)
            given.remove(IMAGES)
        rest = {name: self._rest(name) for name in REST[:-1] if name in given}
        if _ADVANTAGES in given:
            with suppress(InvalidGroup):
                floats[_ADVANTAGES] = self._fitting(_ADVANTAGES)
            if _ADVANTAGES not in floats:
                rest[_ADVANTAGES] = self._rest(_ADVANTAGES)
        choices = [
            (self._fitting(name), _NONE) if name in given else None
            for name in ("distill_token_ids", "distill_logprobs")
        ]
        columns = Columns(
            seq_lens=self._seq_lens,
            tokens=_NONE,
            trained=masks != MASKED,
            labels=masks,
            scores=self._scores(),
            floats=floats,
            versions=self._fitting("versions") if "versions" in given else None,
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
        return columns

    def _given(self, name: str) -> bool:
        """Whether a member has a value; old clients write [] for an absent list."""
        place = self.places[name]
        text = self._body[place.start : min(place.stop, place.start + GAP_BYTES)]
        if name in OPTIONAL_LISTS and text.translate(None, BLANKS) == b"[]":
            self.mended[name] = b"null"
        return text != b"null" and name not in self.mended

    # --- numbers ------------------------------------------------------------------

    def numbers(self, name: str) -> Iterator[Array]:
        """The entries of a member, row by row, in chunks."""
        if name == "routed_experts" and self.head.routed_experts is not None:
            flat = self.head.routed_experts.reshape(-1)
            for at in range(0, len(flat), GAP_BYTES):
                yield flat[at : at + GAP_BYTES]
        else:
            yield from (values for _, _, values in self._chunks(name))

    def _chunks(self, name: str) -> Iterator[Chunk]:
        dtype = np.int64 if name in _LEAST else np.float64
        lists = name.startswith("distill_")
        return each_chunk(self._body, self.places[name], dtype, lists=lists)

    def _counted(self, name: str) -> tuple[Array, Array]:
        """Numbers of choices of a member, and the lengths of its rows; its numbers are checked."""
        lengths: list[int] = []
        all_counts, at = [_NONE], 0
        if name not in self.places:
            raise InvalidGroup(name, "", "missing")
        try:
            for row, counts, values in self._chunks(name):
                lengths.extend([0] * (row + 1 - len(lengths)))
                lengths[row] += len(values if counts is None else counts)
                if counts is not None:
                    all_counts.append(counts.astype(np.int32))
                elif lengths[row] > MAX_TOKENS:
                    raise InvalidGroup(name, f"[{row}]", f"more than {MAX_TOKENS} tokens")
                self._check(name, row, values)
                self._numbers.add(name, row, at, values)
                at += len(values)
        except InvalidGroup:
            raise
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            kind = "integers" if name in _LEAST else "numbers"
            raise InvalidGroup(name, "", f"not a list of rows of {kind}") from error
        return np.concatenate(all_counts), np.array(lengths, np.int64)

    def _check(self, name: str, row: int, values: Array) -> None:
        if not len(values):
            return
        low, high = values.min(), values.max()
        if name not in _LEAST:
            if not (np.isfinite(low) and np.isfinite(high)):
                raise InvalidGroup(name, f"[{row}]", "not a finite number")
            if max(-low, high) > _FLOAT32_MAX:
                self.wide.add(name)
        elif low < _LEAST[name] or high > _INT32.max:
            problem = f"numbers lie in {_LEAST[name]} .. 2^31 - 1"
            raise InvalidGroup(name, f"[{row}]", problem)

    def _fitting(self, name: str) -> Array:
        """Numbers of choices of a member that has one entry per token; empty for plain numbers."""
        counts, lengths = self._counted(name)
        if not np.array_equal(lengths, self._seq_lens):
            raise InvalidGroup(name, "", "not one entry per token")
        return counts

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
        if len(text) > LARGE_REST or text.count(b"[") + text.count(b"{") > MAX_REST_VALUES:
            problem = f"at most {LARGE_REST} bytes and {MAX_REST_VALUES} lists and objects"
            raise InvalidGroup(name if name in KEYS else "body", "", problem)
        return text
