"""Parser of a JSON group into typed arrays, without a Python object per number.

    text -> members -> chunks of rows -> ArrayParts, narrowed and, of a large group, compressed

The parser accepts what the full decoder accepts, with equal values, or refuses; of the type slips of old
clients it accepts only an empty list in an optional field, and bools as scores. Values are checked
afterwards, as for every group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import msgspec
import numpy as np
import zstandard

from atroposlib.api.codec.formats import WHOLE_BYTES, with_marks
from atroposlib.api.codec.json_text import EMPTY_LIST, Text, member_places, row_chunks
from atroposlib.errors import InvalidGroup
from atroposlib.wire import MASKED, PER_SEQUENCE, PER_TOKEN, ScoredData
from atroposlib.wire.columns import check_lengths
from atroposlib.wire.group_arrays import (
    FLOATS,
    INT32,
    MAX_TOKENS,
    REST,
    Columns,
    joined_choices,
    without_values,
)
from atroposlib.wire.images import IMAGES, LARGE_IMAGES, LARGE_REST, MAX_REST_VALUES
from atroposlib.wire.packing import CHOICES, exact
from atroposlib.wire.routing import RoutedExperts, stack
from atroposlib.wire.safetensors import Array, MalformedBody

KEYS: Final = tuple(member.name for member in msgspec.structs.fields(ScoredData))
OPTIONAL_LISTS = (*PER_SEQUENCE[1:], *PER_TOKEN)  # scores are never optional
# An object may be two bytes long and costs a hundred bytes or more to decode.
MAX_OBJECTS = 2**17
# The arrays of a smaller body stay in memory as they are, at most four times its size.
HELD_BYTES = 8 * 2**20

_INTEGERS = ("tokens", "masks", "versions", "distill_token_ids")
_DEPTHS = {
    "scores": 1,
    **dict.fromkeys(("tokens", "masks", "versions", *FLOATS), 2),
    **dict.fromkeys(CHOICES, 3),
}
_SCALARS = {"env_id": int, "group_id": str, "idempotency_key": str, "incarnation": int}
_ADVANTAGES = "advantages"


class ArrayParts:
    """An array in parts; parts of a large group are compressed separately."""

    def __init__(self, compressed: bool) -> None:
        self._compressed = compressed
        self._parts: list[tuple[bytes | Array, Any]] = []
        self.dtype = np.dtype("<i4")

    def add(self, values: Array) -> None:
        """Append integers of 32 bits, or floats, which are narrowed if they are exact."""
        values = exact(values) if values.dtype.kind == "f" else values.astype("<i4")
        if not self._parts or values.dtype.itemsize == 8:
            self.dtype = values.dtype
        part: bytes | Array = values
        if self._compressed:
            # A copy: zstandard returns a text that keeps the memory of the largest outcome.
            packed = zstandard.ZstdCompressor(level=1).compress(values.tobytes())
            part = bytes(memoryview(packed))
        self._parts.append((part, values.dtype))

    def join(self) -> None:
        """Join the parts that are not compressed."""
        if len(self._parts) > 1 and not self._compressed:
            arrays = [cast(Array, part) for part, _ in self._parts]
            self._parts = [(np.concatenate(arrays), self.dtype)]

    def chunks(self) -> Iterator[Array]:
        for part, dtype in self._parts:
            if isinstance(part, bytes):
                part = np.frombuffer(zstandard.ZstdDecompressor().decompress(part), dtype)
            yield part.astype(self.dtype, copy=False)


class JsonGroup:
    """A JSON group as :class:`~atroposlib.wire.group_arrays.GroupArrays`; ``key`` applies if it has none.

    Raises:
        MalformedBody: the body cannot be parsed.
        InvalidGroup: names the field and the row, never a value.
    """

    def __init__(self, body: Text, key: str | None = None) -> None:
        self._body = body
        self._places = member_places(body, _DEPTHS)
        self._arrays: dict[str, ArrayParts] = {}
        self.head = with_marks(self._read_head(), key)

    def chunks(self, name: str) -> Iterator[Array]:
        if name == "mask":
            yield from (labels != MASKED for labels in self._arrays["masks"].chunks())
        elif name == "routed_experts":
            yield cast(Array, self.head.routed_experts)
        else:
            yield from self._arrays["masks" if name == "labels" else name].chunks()

    def _read_head(self) -> Columns:
        for name in self._places.keys() - set(KEYS):  # ignored, but it has to be JSON
            self._value(name, msgspec.Raw)
        present = {name for name in self._places if self._is_present(name)}
        _, seq_lens = self._numbers("tokens")
        check_lengths(seq_lens)
        floats = {name: self._empty(name, seq_lens) for name in FLOATS[:2] if name in present}
        rest = {name: self._rest(name) for name in REST[:-1] if name in present}
        if "marks" in present:  # replaced below, and not among the fields checked afterwards
            self._value("marks", list[str])
        if _ADVANTAGES in present:
            try:
                floats[_ADVANTAGES] = self._empty(_ADVANTAGES, seq_lens)
            except InvalidGroup:
                rest[_ADVANTAGES] = self._rest(_ADVANTAGES)
        choices = [
            (self._counts(name, seq_lens), self._empty_array(name)) if is_present else None
            for name, is_present in ((name, name in present) for name in CHOICES)
        ]
        routed = None
        if "routed_experts" in present:
            rows = self._value("routed_experts", list[RoutedExperts | None])
            routed = stack(rows, seq_lens)
        return Columns(
            seq_lens=seq_lens,
            tokens=self._empty_array("tokens"),
            trained=np.empty(0, np.bool_),
            labels=self._empty("masks", seq_lens),
            scores=self._scores(),
            floats=floats,
            versions=self._empty("versions", seq_lens) if "versions" in present else None,
            distilled=joined_choices(*choices),
            routed_experts=routed,
            rest=rest,
            **{
                name: self._value(name, kind)
                for name, kind in _SCALARS.items()
                if name in present
            },
        )

    def _is_present(self, name: str) -> bool:
        """Whether a member has a value; old clients write [] for an absent list."""
        place = self._places[name]
        if place.stop - place.start == 4 and self._body[place] == b"null":
            return False
        return not (name in OPTIONAL_LISTS and _is_empty_list(self._body, place))

    # --- numbers ------------------------------------------------------------------

    def _numbers(self, name: str) -> tuple[Array, Array]:
        """Numbers of choices of a member, and the lengths of its rows; its numbers are kept."""
        if name not in self._places:
            raise InvalidGroup(name, "", "missing")
        parts = self._arrays[name] = ArrayParts(len(self._body) > HELD_BYTES)
        dtype = np.int64 if name in _INTEGERS else np.float64
        lengths: list[int] = []
        counts = []
        chunks = row_chunks(self._body, self._places[name], dtype, lists=name in CHOICES)
        try:
            for chunk in chunks:
                first, *rest = chunk.lengths.tolist()
                if chunk.goes_on:
                    lengths[-1] += first
                else:
                    lengths.append(first)
                lengths.extend(rest)
                if chunk.counts is not None:
                    counts.append(chunk.counts.astype(np.int32))
                elif lengths[-1] > MAX_TOKENS:
                    problem = f"more than {MAX_TOKENS} tokens"
                    raise InvalidGroup(name, f"[{len(lengths) - 1}]", problem)
                if dtype is np.int64:
                    _require_int32(name, len(lengths) - 1, chunk.values)
                parts.add(chunk.values)
        except InvalidGroup:
            raise
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            kind = "integers" if name in _INTEGERS else "numbers"
            raise InvalidGroup(name, "", f"not a list of rows of {kind}") from error
        parts.join()
        all_counts = np.concatenate(counts) if counts else np.empty(0, np.int32)
        return all_counts, np.array(lengths, np.int64)

    def _counts(self, name: str, seq_lens: Array) -> Array:
        """Keep the numbers of a member with an entry per token; the counts of its lists."""
        counts, lengths = self._numbers(name)
        if not np.array_equal(lengths, seq_lens):
            raise InvalidGroup(name, "", "not one entry per token")
        return counts

    def _empty(self, name: str, seq_lens: Array) -> Array:
        """Keep the numbers of a member with a number per token; an empty array of its type."""
        self._counts(name, seq_lens)
        return self._empty_array(name)

    def _empty_array(self, name: str) -> Array:
        return np.empty(0, self._arrays[name].dtype)

    def _scores(self) -> Array:
        scores: list[float | bool] = self._value("scores", list[float | bool])
        return np.array(scores, np.float64)

    # --- further members -------------------------------------------------------

    def _value(self, name: str, kind: Any) -> Any:
        if name not in self._places:
            raise InvalidGroup(name, "", "missing")
        try:
            return msgspec.json.decode(self._rest(name), type=kind)
        except (ValueError, RecursionError) as error:
            raise InvalidGroup(_key_or_body(name), "", without_values(str(error))) from error

    def _rest(self, name: str) -> bytes:
        """A member as JSON, within the bounds on what its decoding takes."""
        place = self._places[name]
        size = place.stop - place.start
        if name == IMAGES and size > LARGE_IMAGES:  # texts, which are not decoded
            return cast(bytes, memoryview(self._body)[place])
        text = bytes(self._body[place])
        objects = text.count(b"{")
        if len(self._body) <= WHOLE_BYTES:
            if objects > MAX_OBJECTS:
                raise MalformedBody(
                    f"more than {MAX_OBJECTS} JSON objects: send fewer at a time"
                )
        elif size > LARGE_REST or text.count(b"[") + objects > MAX_REST_VALUES:
            problem = f"at most {LARGE_REST} bytes and {MAX_REST_VALUES} lists and objects"
            raise InvalidGroup(_key_or_body(name), "", problem)
        return text


def _key_or_body(name: str) -> str:
    return name if name in KEYS else "body"


def _is_empty_list(body: Text, place: slice) -> bool:
    match = EMPTY_LIST.match(body, place.start)
    return match is not None and match.end() == place.stop


def _require_int32(name: str, row: int, values: Array) -> None:
    if len(values) and (int(values.min()) < INT32.min or int(values.max()) > INT32.max):
        raise InvalidGroup(name, f"[{row}]", "a number over 2^31 - 1")
