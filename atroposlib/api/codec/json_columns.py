"""Fast parser of a JSON group into typed arrays, without a Python object per number.

simdjson parses into an internal tape; ``as_buffer`` copies the numbers of a member out of
it. ``as_buffer`` flattens any nesting (``[[3,[4]]]`` looks like two tokens), so the copy is
exact only if the shape is proven. The proof counts brackets: each numeric member has the
number that its shape needs, and the body has no further brackets except those inside the
non-numeric members. The full decoder parses bodies that are not proven here.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import msgspec
import numpy as np
import simdjson

from atroposlib.wire import ScoredData
from atroposlib.wire.columns import FLOATS, REST, Columns, check, fits, joined_choices
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


def parse_columns(body: bytes) -> tuple[Columns, frozenset[str]] | None:
    """The group in a JSON object, checked, and the keys it has; None if it is not proven.

    It never raises: the full decoder raises the error, and an exception from here would keep
    the tape alive, which makes the parser of this thread unusable.
    """
    parser = _OF_THREAD.parser if len(body) <= _KEPT_PARSER_BYTES else simdjson.Parser()
    try:
        return _proven(parser.parse(body), body)
    except (ValueError, TypeError, KeyError, RuntimeError):
        return None


def _proven(document: Any, body: bytes) -> tuple[Columns, frozenset[str]]:
    if not isinstance(document, simdjson.Object):
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


def count_byte(byte: bytes, body: bytes) -> int:
    """Occurrences of ``byte``. ``find`` scans a body of numbers 30 times faster than
    ``count`` but stops at each place, so it serves for the first ``_FEW`` only."""
    found, place = 0, body.find(byte)
    while place >= 0 and found < _FEW:
        found, place = found + 1, body.find(byte, place + 1)
    if place < 0:
        return found
    return found + int(np.count_nonzero(np.frombuffer(body, np.uint8, -1, place) == byte[0]))


def _hides_bracket(body: bytes) -> bool:
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
            masks=self._rows("masks", "i"),
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
