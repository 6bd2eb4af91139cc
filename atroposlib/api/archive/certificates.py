"""Certificate of a batch, repeated from its stored groups, the index and the record of the run."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from atroposlib.api.archive.index import Index
from atroposlib.api.archive.records import RunFacts
from atroposlib.api.store import Store
from atroposlib.certificate.claims import (
    CLAIMS,
    PROVED,
    Circumstances,
    RowClaims,
    SealedRow,
    Standing,
    absence,
    refutation,
    refute_repeated,
    row_claims,
    rows_with_claims,
    sample_identity,
)
from atroposlib.errors import CorruptPayload, InvalidGroup, UnknownGroup
from atroposlib.wire.binary import unpack_columns
from atroposlib.wire.safetensors import MalformedBody

# Number of a trainer's step: tokens of canaries that went through the prefix caches and agreed.
PREFIX_CACHE_TOKENS = "prefix_cache_tokens"
_FRESH = (
    "SELECT DISTINCT CAST(body ->> 'version' AS INTEGER) FROM step WHERE role = 'trainer' "
    f"AND body ->> '{PREFIX_CACHE_TOKENS}' > 0"
)


class RowCertificate(msgspec.Struct):
    """Values of the claims about a row, and the reason of each that is not proved."""

    gid: int
    row: int
    claims: dict[str, str]
    why: dict[str, str]


class BatchCertificate(msgspec.Struct):
    """GET /explore/batches/{no}/certificate. ``counts``: rows by claim and value."""

    no: int
    step: int | None
    counts: dict[str, dict[str, int]]
    rows: list[RowCertificate]


class _Indexed(NamedTuple):
    """Facts of a row that were noted at its arrival."""

    gid: int
    row: int
    env: str | None
    step: int | None
    arrived_version: int | None
    reward: float | None
    n_tokens: int | None
    n_trained: int | None


def batch_certificate(index: Index, store: Store, run: RunFacts, no: int) -> BatchCertificate:
    """The certificate of batch ``no``, read group by group.

    Raises:
        UnknownGroup: the index has no batch of this number.
    """
    sql = f"SELECT {', '.join(_Indexed._fields)} FROM rollout WHERE batch_no = ? ORDER BY gid, row"
    found = [_Indexed(*row) for row in index.read(sql, (no,))] if abs(no) < 2**63 else []
    if not found:
        raise UnknownGroup(f"batch {no} is not in the index")
    fresh = frozenset(version for (version,) in index.read(_FRESH))
    claims: list[RowClaims] = []
    identities: list[tuple[str, ...]] = []
    for gid, members in groupby(found, key=lambda row: row.gid):
        indexed = list(members)
        rows = stored_rows(store, gid)
        if isinstance(rows, Standing):
            claims += [{"bytes": rows} for _ in indexed]
            identities += [()] * len(indexed)
            continue
        known = circumstances(run, indexed[0].env, indexed[0].arrived_version, fresh)
        for noted in indexed:
            if noted.row >= len(rows):
                claims.append({"bytes": refutation("the stored group has fewer rows")})
                identities.append(())
                continue
            row = rows[noted.row]
            claims.append({**row_claims(row, known), "bytes": _bytes_claim(row, noted)})
            identities.append(sample_identity(row))
    refute_repeated(claims, identities)
    certificates = [
        RowCertificate(
            gid=noted.gid,
            row=noted.row,
            claims={name: claim.value.value for name, claim in of_row.items()},
            why={name: claim.why for name, claim in of_row.items() if claim.why},
        )
        for noted, of_row in zip(found, claims)
    ]
    return BatchCertificate(no, found[0].step, counts_of(certificates), certificates)


def counts_of(rows: list[RowCertificate]) -> dict[str, dict[str, int]]:
    """Rows by claim and value, in the order of the claims."""
    counts: dict[str, Counter[str]] = {}
    for name in CLAIMS:
        values = Counter(row.claims[name] for row in rows if name in row.claims)
        if values:
            counts[name] = values
    return {name: dict(values) for name, values in counts.items()}


def circumstances(
    run: RunFacts,
    env: str | None,
    arrived_version: int | None,
    fresh: frozenset[int] | None,
) -> Circumstances:
    """The facts about a group of ``env`` that the run holds."""
    return Circumstances(
        arrived_version=arrived_version,
        incarnation=run.incarnation,
        max_token_len=run.max_token_len,
        vocab_size=run.vocab_size,
        source_digest=run.sources.get(env or "", {}).get("digest", ""),
        fresh_versions=fresh,
        first_versions=frozenset({0, *run.starts}),
    )


def stored_rows(store: Store, gid: int) -> list[SealedRow] | Standing:
    """The rows of a stored group, or the claim about bytes that hold none."""
    try:
        [payload] = store.read([gid], retired=True)
        return list(rows_with_claims(unpack_columns(payload)))
    except CorruptPayload:
        if list(store.kept_gids(gid - 1, 1)) == [gid]:
            return refutation("the stored bytes do not fit their digest")
        return absence("the bytes of the group are freed")
    except (InvalidGroup, MalformedBody) as error:
        return refutation(f"the stored bytes are no group: {error}")


def _bytes_claim(row: SealedRow, noted: _Indexed) -> Standing:
    """The claim that the stored row has the facts that were noted at its arrival."""
    now: dict[str, Any] = {
        "reward": row.score,
        "n_tokens": len(row.tokens),
        "n_trained": int(row.trained.sum()),
    }
    for name, value in now.items():
        if getattr(noted, name) not in (None, value):
            return refutation(f"{name} {value}, at the arrival {getattr(noted, name)}")
    return PROVED
