"""A scored group as flat typed arrays: whole (:class:`Columns`), or read in chunks.

Rows are concatenated, with their lengths in ``seq_lens``. Non-numeric fields stay JSON.
:class:`GroupArrays` is a group whose arrays are read in chunks, so that a large group takes
memory for some numbers at a time; :class:`Columns` is a group whose arrays are in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np

from atroposlib.errors import InvalidGroup
from atroposlib.wire.messages import MASKED, ScoredData
from atroposlib.wire.safetensors import Array

MAX_ROWS = 4096
MAX_TOKENS = 2**23  # bound on a group
INT32 = np.iinfo(np.int32)
FLOATS = ("inference_logprobs", "ref_logprobs", "advantages")  # an entry per token
REST = (  # non-numeric fields; advantages only if they do not fit the tokens
    "messages",
    "generation_params",
    "overrides",
    "group_overrides",
    "images",
    "sampling",
    "finish_reasons",
    "outcomes",
    "metadata",
    "marks",
    "advantages",
)
_DECODERS = {
    member.name: msgspec.json.Decoder(member.type)
    for member in msgspec.structs.fields(ScoredData)
}


@dataclass(frozen=True, slots=True)
class Distilled:
    """Top choices of a teacher; ``counts[t]`` entries belong to position t."""

    counts: Array  # (T,)
    token_ids: Array | None = None  # (sum of counts,)
    logprobs: Array | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """A group: G sequences with T tokens in total."""

    seq_lens: Array  # (G,)
    tokens: Array  # (T,) ints
    trained: Array  # (T,) bools
    scores: Array  # (G,) float64
    labels: Array | None = None  # (T,) ints, -100 where not trained; None: the tokens
    floats: dict[str, Array] = field(default_factory=dict)  # keys are FLOATS, values (T,)
    versions: Array | None = None  # (T,)
    distilled: Distilled | None = None
    routed_experts: Array | None = None  # (T, L, K), see wire.routing
    env_id: int | None = None
    group_id: str | None = None
    idempotency_key: str | None = None
    incarnation: int | None = None
    rest: dict[str, bytes] = field(default_factory=dict)  # keys are REST, values JSON

    @property
    def head(self) -> Columns:
        """``self``: as :class:`GroupArrays` it holds all of its arrays."""
        return self

    @property
    def masks(self) -> Array:
        """(T,) ints, -100 or the label."""
        if self.labels is not None:
            return self.labels
        return np.where(self.trained, self.tokens, np.int32(MASKED))

    def arrays(self) -> dict[str, Array]:
        """The entries per token by the names of their tensors, without absent tensors."""
        choices = self.distilled or Distilled(self.seq_lens)
        named = {
            "tokens": self.tokens,
            "mask": self.trained,
            "labels": self.labels,
            "versions": self.versions,
            **self.floats,
            "distill_token_ids": choices.token_ids,
            "distill_logprobs": choices.logprobs,
            "routed_experts": self.routed_experts,
        }
        return {name: values for name, values in named.items() if values is not None}

    def chunks(self, name: str) -> Iterator[Array]:
        """The entries of an array, in a single chunk."""
        yield self.arrays()[name]

    @property
    def declared_size(self) -> int | None:
        """``group_overrides["group_size"]``, if it is an int."""
        overrides = self.rest_value("group_overrides") or {}
        size = overrides.get("group_size")
        return size if type(size) is int else None

    def rest_value(self, name: str) -> Any:
        """A non-numeric field, decoded; None if absent. Raises InvalidGroup: another type."""
        try:
            return _DECODERS[name].decode(self.rest[name]) if name in self.rest else None
        except RecursionError as error:
            raise InvalidGroup(name, "", "nested too deeply") from error
        except ValueError as error:  # msgspec's, or bytes that are not UTF-8
            raise InvalidGroup(name, "", without_values(str(error))) from error


class GroupArrays(Protocol):
    """A group whose arrays with entries per token are read in chunks, again each time."""

    @property
    def head(self) -> Columns:
        """The group; its arrays with entries per token may be empty, of the types of theirs."""

    def chunks(self, name: str) -> Iterator[Array]:
        """The entries of an array of ``head.arrays()``, chunk by chunk, in order."""


def without_values(problem: str) -> str:
    """The error message of msgspec without quoted input, at most 500 characters."""
    problem = re.sub(
        r"Invalid enum value .*?(?= - at `\$|$)", "Not an allowed value", problem, 1, re.S
    )
    return problem[:500]


def joined_choices(
    token_ids: tuple[Array, Array] | None, logprobs: tuple[Array, Array] | None
) -> Distilled | None:
    """Join the two distill fields, each (counts, values)."""
    first = token_ids or logprobs
    if first is None:
        return None
    if token_ids and logprobs and not np.array_equal(token_ids[0], logprobs[0]):
        raise InvalidGroup("distill_logprobs", "", "not one logprob per distilled token")
    return Distilled(
        first[0], token_ids[1] if token_ids else None, logprobs[1] if logprobs else None
    )


def match_rows(lengths: Iterable[int], seq_lens: Array) -> bool:
    """Whether rows of these lengths match the rows of tokens."""
    return bool(list(lengths) == seq_lens.tolist())


class Place:
    """The index ``[g][t]`` of a position of the flat arrays."""

    def __init__(self, seq_lens: Array) -> None:
        self._ends = np.cumsum(seq_lens)

    def __call__(self, flat: int) -> str:
        g = int(np.searchsorted(self._ends, flat, side="right"))
        return f"[{g}][{flat - (int(self._ends[g - 1]) if g else 0)}]"


class TakenNumbers:
    """The numbers of chunks, taken in portions of any size."""

    def __init__(self, chunks: Iterator[Array]) -> None:
        self._chunks = chunks
        self._left: Array = np.empty(0, np.int32)

    def take(self, count: int) -> Array:
        parts = []
        while count:
            if not len(self._left):
                self._left = next(self._chunks)
            parts.append(self._left[:count])
            self._left = self._left[count:]
            count -= len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [self._left[:0]])
