"""Claims about the rows of a group, each proved, declared, absent or refuted. Pure.

    proved     repeated from the row, and equal to what its writer sealed or the run prescribes
    declared   stated by a writer; the row holds nothing to repeat it from
    absent     not stated
    refuted    the row contradicts it

A claim that has no meaning for a row is left out: routes of a dense model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from atroposlib.certificate.seals import SEAL, SEALS, TASK, SpanSeal, score_seal, span_seal
from atroposlib.wire.group_arrays import Columns
from atroposlib.wire.messages import (
    MASKED_LOGPROB,
    MASKED_VERSION,
    MAX_LOGPROB,
    NEUTRAL_CUTS,
    NEUTRAL_PENALTIES,
)
from atroposlib.wire.routing import wide_form
from atroposlib.wire.safetensors import Array

NEUTRAL = NEUTRAL_CUTS | NEUTRAL_PENALTIES
# A server may sample with new weights for a moment before the trainer announces their version.
UNANNOUNCED_VERSIONS = 1
CLAIMS = {
    "tokens": "trained tokens are those that a session sampled",
    "logprobs": "logprobs are those of the sampler, after its temperature",
    "versions": "each trained token has a version, on one line of weights, none in the future",
    "sampling": "sampling parameters are recorded",
    "routes": "routed experts are those of the calls that sampled the tokens",
    "outcome": "the outcome is typed",
    "reward": "code of the registered digest gave this score to these tokens",
    "task": "the digest of the task is recorded",
    "prefix_cache": "the prefix cache of the servers was fresh for the versions",
    "context": "the row fits into the trainer's length",
    "vocabulary": "each token lies within the vocabulary",
    "distinct": "no two rows are the same sample",
    "bytes": "the stored bytes fit their digest, and the facts noted at their arrival",
}


class Value(str, Enum):
    """Standing of a claim."""

    PROVED = "proved"
    DECLARED = "declared"
    ABSENT = "absent"
    REFUTED = "refuted"


class Standing(NamedTuple):
    """Standing of a claim about a row, and the reason unless it is proved."""

    value: Value
    why: str = ""


PROVED = Standing(Value.PROVED)
RowClaims = dict[str, Standing]


@dataclass(frozen=True)
class Circumstances:
    """Facts about a group that others wrote: the API at its arrival, its trainer."""

    arrived_version: int | None = None  # policy version at the arrival
    incarnation: int = 0  # life of the trainer in force; 0: not counted
    max_token_len: int = -1  # up to 0: unknown
    vocab_size: int | None = None
    source_digest: str = ""  # registered by the environment
    # versions whose publish was checked through the prefix cache; None: not asked yet
    fresh_versions: frozenset[int] | None = None
    first_versions: frozenset[int] = frozenset()  # held by the servers before any publish


@dataclass(frozen=True)
class SealedRow:
    """A row of T tokens with its seals and the facts of its group."""

    tokens: Array  # (T,)
    trained: Array  # (T,) bools
    logprobs: Array | None  # (T,)
    versions: Array | None  # (T,)
    experts: Array | None  # (T, L, K) int16
    spans: Sequence[Mapping[str, Any]]
    stated: Mapping[str, Any]  # sampling parameters of the group and of the row
    outcome: str | None
    score: float
    score_seal: str | None
    task: str | None
    incarnation: int | None

    @cached_property
    def seals(self) -> list[SpanSeal | None]:
        return [SpanSeal.parse(span.get(SEAL)) for span in self.spans]

    @cached_property
    def repeated(self) -> list[SpanSeal | None]:
        """The seal of each sealed span, computed from the row as it is."""
        none = np.full(len(self.tokens), MASKED_VERSION)
        logprobs = none if self.logprobs is None else self.logprobs
        versions = none if self.versions is None else self.versions
        return [
            seal and self._seal_again(span, seal, logprobs, versions)
            for span, seal in zip(self.spans, self.seals)
        ]

    def _seal_again(
        self, span: Mapping[str, Any], seal: SpanSeal, logprobs: Array, versions: Array
    ) -> SpanSeal:
        here = slice(span["start"], span["end"])
        return span_seal(
            seal.nonce,
            span,
            self.tokens,
            logprobs[here],
            versions[here],
            self.experts if seal.routes else None,
            min(seal.routed_tokens, len(self.tokens)),
        )

    @cached_property
    def uncovered(self) -> Array:
        """(T,) trained tokens outside of all spans."""
        outside = self.trained.copy()
        for span in self.spans:
            outside[span["start"] : span["end"]] = False
        return outside

    def is_whole(self, at: int) -> bool:
        """Whether all tokens of a span are trained, so that all their numbers are kept."""
        span = self.spans[at]
        return bool(self.trained[span["start"] : span["end"]].all())

    def compare(self, part: str) -> Standing | None:
        """The claim that a part of all seals is as sealed; None if nothing contradicts it.

        Numbers of a span that is not trained as a whole are not kept, so that they are declared.
        """
        proves = not self.uncovered.any()
        for at, (seal, now) in enumerate(zip(self.seals, self.repeated)):
            if seal is None or now is None:
                proves = False
            elif part in ("logprobs", "versions") and not self.is_whole(at):
                proves = False
            elif getattr(seal, part) != getattr(now, part):
                span = self.spans[at]
                place = f"tokens [{span['start']}, {span['end']})"
                return refutation(f"{part} of {place} differ from the seal of their session")
        return PROVED if proves else None


def refutation(why: str) -> Standing:
    return Standing(Value.REFUTED, why)


def declaration(why: str) -> Standing:
    return Standing(Value.DECLARED, why)


def absence(why: str) -> Standing:
    return Standing(Value.ABSENT, why)


def certificate(columns: Columns, known: Circumstances) -> list[RowClaims]:
    """The claims about each row of a group, by the names of ``CLAIMS``."""
    rows = list(rows_with_claims(columns))
    claims = [row_claims(row, known) for row in rows]
    refute_repeated(claims, [sample_identity(row) for row in rows])
    return claims


def refute_repeated(
    claims: Sequence[RowClaims], identities: Sequence[tuple[str, ...]]
) -> None:
    """Refute ``distinct`` of each row whose samples are those of an earlier row."""
    for place in repeated_samples(identities):
        claims[place]["distinct"] = refutation("an earlier row is the same sample")


def rows_with_claims(columns: Columns) -> Iterator[SealedRow]:
    """The rows of a group, as views of its arrays."""
    G = len(columns.seq_lens)
    metadata = columns.rest_value("metadata") or {}
    seals = metadata.get(SEALS)
    seals = seals if isinstance(seals, list) and len(seals) == G else [None] * G
    sampling = columns.rest_value("sampling") or [[]] * G
    outcomes = columns.rest_value("outcomes") or [None] * G
    overrides = columns.rest_value("overrides") or [{}] * G
    params = columns.rest_value("generation_params") or {}
    shared = columns.rest_value("group_overrides") or {}
    task, experts = metadata.get(TASK), columns.routed_experts
    start = 0
    for g, length in enumerate(columns.seq_lens.tolist()):
        here = slice(start, start + length)
        logprobs = columns.floats.get("inference_logprobs")
        yield SealedRow(
            tokens=columns.tokens[here],
            trained=columns.trained[here].astype(np.bool_),
            logprobs=None if logprobs is None else logprobs[here],
            versions=None if columns.versions is None else columns.versions[here],
            experts=None if experts is None else wide_form(experts[here]),
            spans=sampling[g],
            stated={**shared, **params, **(overrides[g] or {})},
            outcome=outcomes[g],
            score=float(columns.scores[g]),
            score_seal=seals[g] if isinstance(seals[g], str) else None,
            task=task if isinstance(task, str) else None,
            incarnation=columns.incarnation,
        )
        start += length


def sample_identity(row: SealedRow) -> tuple[str, ...]:
    """Identity of the samples of a row and of the tokens that it trains; empty: not known."""
    named = [seal.nonce for seal in row.seals if seal is not None]
    return (*named, f"{int(row.trained.sum())} trained") if named else ()


def repeated_samples(identities: Sequence[tuple[str, ...]]) -> list[int]:
    """Places of the rows whose samples are those of an earlier row."""
    seen: set[tuple[str, ...]] = set()
    places = []
    for place, identity in enumerate(identities):
        if identity and identity in seen:
            places.append(place)
        seen.add(identity)
    return places


def row_claims(row: SealedRow, known: Circumstances) -> RowClaims:
    """The claims about a row by itself."""
    claims = {
        "tokens": _tokens(row),
        "logprobs": _logprobs(row),
        "versions": _versions(row, known),
        "sampling": _sampling(row),
        "routes": _routes(row),
        "prefix_cache": _prefix_cache(row, known),
        **_sealed_score(row, known),
        "context": _context(row, known),
        "vocabulary": _vocabulary(row, known),
        "distinct": PROVED
        if sample_identity(row)
        else declaration("no session named its samples"),
    }
    return {name: claim for name in CLAIMS if (claim := claims.get(name)) is not None}


def _tokens(row: SealedRow) -> Standing:
    compared = row.compare("tokens")
    if compared is not None:
        return compared
    outside = row.uncovered
    if outside.any():
        at = int(outside.argmax())
        unsampled = row.logprobs is not None and row.logprobs[at] == MASKED_LOGPROB
        if unsampled and any(row.seals):
            return refutation(f"token {at} is trained, and no call sampled it")
        return absence(f"no call is recorded for trained token {at}")
    return declaration("calls without the seal of a session")


def _logprobs(row: SealedRow) -> Standing:
    if row.logprobs is None:
        return absence("no logprobs of the sampler")
    of_trained = row.logprobs[row.trained]
    if ((of_trained > MAX_LOGPROB) & (of_trained != MASKED_LOGPROB)).any():
        return refutation("a logprob above 0")
    if (of_trained == MASKED_LOGPROB).any():
        return absence("a trained token without a logprob")
    for span in row.spans:
        shifted = any(span.get(name, value) != value for name, value in _SHIFTS.items())
        if span.get("logprobs") == "raw" and (shifted or span["temperature"] not in (0, 1)):
            return refutation(f"logprobs before the temperature {span['temperature']:g}")
    compared = row.compare("logprobs")
    if compared is None or compared.value is Value.REFUTED:
        return compared or declaration("logprobs without the seal of a session")
    if any("logprobs" not in span for span in row.spans):
        return declaration("the server does not report the kind of its logprobs")
    return PROVED


_SHIFTS: dict[str, Any] = {**NEUTRAL_PENALTIES, "constraints": []}


def _versions(row: SealedRow, known: Circumstances) -> Standing:
    sampled = None if row.versions is None else row.versions[row.trained]
    if sampled is None or (sampled == MASKED_VERSION).any():
        return absence("a trained token without a version")
    life = row.incarnation
    if life is not None and known.incarnation and life > known.incarnation:
        return refutation(f"incarnation {life} of {known.incarnation} that the run has had")
    lives_between = known.incarnation - life if life is not None and known.incarnation else 0
    if int((np.diff(sampled) < 0).sum()) > lives_between:
        return refutation(
            "a later token has an older version, and no trainer began anew between"
        )
    if len(sampled) and known.arrived_version is not None and not lives_between:
        latest = known.arrived_version + UNANNOUNCED_VERSIONS
        if int(sampled.max()) > latest:
            return refutation(
                f"version {int(sampled.max())}, when the newest was {known.arrived_version}"
            )
    compared = row.compare("versions")
    if compared is not None and compared.value is Value.REFUTED:
        return compared
    if life is None:
        return declaration("no incarnation: a restarted trainer may have had the same numbers")
    return compared or declaration("versions without the seal of a session")


def _sampling(row: SealedRow) -> Standing:
    compared = row.compare("settings")
    if compared is not None and compared.value is Value.REFUTED:
        return compared
    if not row.spans:
        named = "temperature" in row.stated
        why = "sampling parameters of no call"
        return declaration(f"{why}, those of the group") if named else absence(why)
    for name, neutral in NEUTRAL.items():
        stated = row.stated.get(name, neutral)
        if stated != neutral and all(span.get(name, neutral) == neutral for span in row.spans):
            return refutation(f"the group states {name} {stated}, its calls do not")
    return compared or declaration("sampling parameters without the seal of a session")


def _routes(row: SealedRow) -> Standing | None:
    sealed = [seal for seal in row.seals if seal is not None and seal.routes]
    if row.experts is None:
        return absence("routed experts were not kept") if sealed else None
    if not sealed:
        return declaration("routed experts without the seal of a session")
    return row.compare("routes") or declaration("routed experts of some calls are not sealed")


def _sealed_score(row: SealedRow, known: Circumstances) -> RowClaims:
    outcome = absence("no outcome") if row.outcome is None else declaration("not sealed")
    task = absence("no digest of the task") if row.task is None else declaration("not sealed")
    claims = {"outcome": outcome, "task": task}
    if not known.source_digest:
        return {
            **claims,
            "reward": absence("the environment registered no digest of its code"),
        }
    if row.score_seal is None:
        return {**claims, "reward": declaration("the environment did not seal the score")}
    seal = score_seal(row.score, row.outcome, row.tokens, known.source_digest, row.task)
    if seal != row.score_seal:
        why = "score, outcome, tokens, task or digest of the code differ from the seal"
        return {**claims, "reward": refutation(why)}
    proved = {
        name: claim if claim.value is Value.ABSENT else PROVED
        for name, claim in claims.items()
    }
    return {**proved, "reward": PROVED}


def _prefix_cache(row: SealedRow, known: Circumstances) -> Standing | None:
    if known.fresh_versions is None:
        return None
    sampled = [] if row.versions is None else row.versions[row.trained].tolist()
    if MASKED_VERSION in sampled or row.versions is None:
        return absence("a trained token without a version")
    unchecked = set(sampled) - known.fresh_versions
    if unchecked - known.first_versions:
        oldest = min(unchecked - known.first_versions)
        return absence(f"the publish of version {oldest} was not checked through the cache")
    if unchecked:
        return declaration("the servers began with these weights")
    return PROVED


def _context(row: SealedRow, known: Circumstances) -> Standing:
    length, longest = len(row.tokens), known.max_token_len
    if longest <= 0:
        return absence("no trainer registered a length")
    return refutation(f"{length} tokens of at most {longest}") if length > longest else PROVED


def _vocabulary(row: SealedRow, known: Circumstances) -> Standing:
    if known.vocab_size is None:
        return absence("no trainer registered the size of its vocabulary")
    if (highest := int(row.tokens.max())) >= known.vocab_size:
        return refutation(f"token {highest}, the vocabulary has {known.vocab_size}")
    return PROVED
