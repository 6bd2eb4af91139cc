"""Seals: digests of a row that its session and its environment write, and a reader repeats.

    session       seal of a span    nonce.tokens.logprobs.versions.settings[.routes]   in ``sampling``
    environment   seal of a score   digest                                             in ``metadata.seals``

A seal finds damage, mistakes and edits after the fact. It has no key, so it is no signature:
a sender that computes it over forged tokens is not found by it.

T tokens of a row, S tokens of a span.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import numpy as np

from atroposlib.wire.safetensors import Array

SEAL = "seal"  # key of a span
SEALS = "seals"  # key of the metadata of a group, an entry per row
TASK = "task_digest"  # key of the metadata of a group
DIGEST_BYTES = 8
# Keys of a span that are digested elsewhere, or not: a place is part of the digest of the tokens.
_UNSEALED = (SEAL, "start", "end")


class SpanSeal(NamedTuple):
    """Digests of a span, as hexadecimal text."""

    nonce: str  # random id of the sample: equal in copies of it alone
    tokens: str  # digest of the row up to the end of the span
    logprobs: str
    versions: str
    settings: str  # temperature, top_p and so on, kind of the logprobs, finish reason
    routes: str = ""  # experts of its first tokens, COUNT:DIGEST; empty: none were reported

    @property
    def routed_tokens(self) -> int:
        """Tokens of the span whose experts were known when it was sealed."""
        count = self.routes.partition(":")[0]
        return int(count) if count.isdecimal() else 0

    @classmethod
    def parse(cls, text: object) -> SpanSeal | None:
        """The seal in a span; None if it is absent or of another form."""
        parts = text.split(".") if isinstance(text, str) else []
        return cls(*parts) if 5 <= len(parts) <= 6 else None

    def text(self) -> str:
        """The seal as :meth:`parse` reads it."""
        return ".".join(part for part in self if part)


def span_seal(
    nonce: str,
    span: Mapping[str, Any],
    tokens_T: Sequence[int] | Array,
    logprobs_S: Sequence[float] | Array,
    versions_S: Sequence[int] | Array,
    experts: Array
    | None,  # (t, L, K) int16 of the first tokens of the row, -1 where not known
    routed_tokens: int | None = None,
) -> SpanSeal:
    """The seal of the tokens [start, end) of a row. Numbers count as int32 and float32.

    Args:
        routed_tokens: tokens of the span whose experts are sealed; None: all known. A later call
            may report the experts of the last token, which no forward pass had seen.
    """
    start, end = span["start"], span["end"]
    settings = {
        name: float(value) if isinstance(value, (int, float)) else value
        for name, value in sorted(span.items())
        if name not in _UNSEALED
    }
    known_end = end
    if experts is not None:
        known_end = max(start, min(end, len(experts)))
    if routed_tokens is not None:
        known_end = start + routed_tokens
    return SpanSeal(
        nonce=nonce,
        tokens=_digest(
            nonce,
            struct.pack("<qq", start, end),
            np.asarray(tokens_T[:end]).astype("<i4").tobytes(),
        ),
        logprobs=_digest(nonce, np.asarray(logprobs_S).astype("<f4").tobytes()),
        versions=_digest(nonce, np.asarray(versions_S).astype("<i4").tobytes()),
        settings=_digest(nonce, msgspec.json.encode(settings)),
        routes="" if experts is None else _routes_digest(nonce, experts, start, known_end),
    )


def _routes_digest(nonce: str, experts: Array, start: int, end: int) -> str:
    """Count and digest of the experts of the tokens [start, end); -1 stands for unknown ones."""
    padded = np.full((end - start, *experts.shape[1:]), -1, "<i2")
    held = experts[start:end]
    padded[: len(held)] = held
    digest = _digest(nonce, struct.pack(f"<{padded.ndim}q", *padded.shape), padded.tobytes())
    return f"{end - start}:{digest}"


def score_seal(
    score: float,
    outcome: str | None,
    tokens_T: Sequence[int] | Array,
    source_digest: str,
    task_digest: str | None,
) -> str:
    """The seal of a score: that the code of ``source_digest`` gave it to these tokens."""
    facts = [float(score), outcome, source_digest, task_digest]
    return _digest(
        "", msgspec.json.encode(facts), np.asarray(tokens_T).astype("<i4").tobytes()
    )


def _digest(nonce: str, *parts: bytes) -> str:
    state = blake2b(nonce.encode(), digest_size=DIGEST_BYTES)
    for part in parts:
        state.update(struct.pack("<q", len(part)))
        state.update(part)
    return state.hexdigest()
