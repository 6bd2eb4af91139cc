"""SQL of the run: its document, and admissions of rollouts."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from atroposlib.api.common.records import AdmissionGrant, GroupState, RunDocument
from atroposlib.api.store.sql import schema
from atroposlib.api.store.sql.claim import drop

_EMPTIED = (
    "payload",
    "groups",
    "batch",
    "group_counts",
    "totals",
    "admission",
    "unconfirmed",
    "run_document",
)
# Versions after the fork, of lives that are over; as ``on_lineage``, and never below 0.
_FORK = """
UPDATE groups SET
    version = CASE WHEN version <= ? THEN version
        WHEN version < 2 * ? THEN 2 * ? - version WHEN version >= 0 THEN 0 END,
    arrived_version = CASE WHEN arrived_version > ? THEN ? ELSE arrived_version END
WHERE state IN ('buffered', 'pending') AND (version > ? OR arrived_version > ?)
"""


def load(connection: schema.Connection, after_env: int = -1) -> RunDocument:
    meta, body = schema.read_meta(connection), schema.document(connection, schema.RUN)
    sql = "SELECT body FROM run_document WHERE name > ? AND name <= ? ORDER BY name"
    rows = connection.execute(sql, (_env_name(after_env), _env_name(schema.MAX_INT64)))
    envs = tuple(bytes(env) for (env,) in rows)
    return RunDocument(meta.revision, meta.generation, body, envs)


def _env_name(env_id: int) -> str:
    """Name of the document of an environment; in the order of the ids."""
    return f"env {env_id + 1:020}"


def save(
    connection: schema.Connection,
    body: bytes,
    revision: int,
    fence: bool,
    fork: int | None = None,
    envs: Mapping[int, bytes | None] = {},
) -> RunDocument:
    with schema.counting(connection) as counters:
        counters.meta.require_revision(revision)
        bodies = {_env_name(env): entry for env, entry in envs.items()}
        schema.keep_documents(connection, {schema.RUN: body, **bodies})
        counters.set(revision=revision + 1)
        if fork is not None:
            connection.execute(_FORK, [fork] * 7)
        if fence:
            counters.set(generation=counters.meta.generation + 1, delivered=0)
        return RunDocument(counters.meta.revision, counters.meta.generation, body)


def begin(connection: schema.Connection) -> None:
    meta = schema.read_meta(connection)
    body = msgspec.json.encode((meta.last_gid, meta.last_batch))
    schema.keep_document(connection, schema.BEGUN, body)


def begun(connection: schema.Connection) -> tuple[int, int]:
    body = schema.document(connection, schema.BEGUN) or b"[0, 0]"
    return msgspec.json.decode(body, type=tuple[int, int])


def reset(connection: schema.Connection) -> RunDocument:
    with schema.counting(connection) as counters:
        for table in _EMPTIED:
            connection.execute(f"DELETE FROM {table}")
        begin(connection)
        meta = counters.meta
        counters.set(
            revision=meta.revision + 1,
            generation=meta.generation + 1,
            retained_bytes=0,
            delivered=0,
            batches_open=0,
            batches_acked=0,
            batches_dead=0,
        )
        return RunDocument(counters.meta.revision, counters.meta.generation, None)


# --- admissions -----------------------------------------------------------------------


def admit(
    connection: schema.Connection, asked: AdmissionGrant, budget: int, now: float
) -> int:
    connection.execute("DELETE FROM admission WHERE until <= ?", (now,))
    known = connection.execute(
        "SELECT n_seq, until FROM admission WHERE admission_id = ?", (asked.admission_id,)
    )
    if known:
        [(granted, until)] = known
        connection.execute(
            "UPDATE admission SET until = ? WHERE admission_id = ?",
            (max(until, asked.until), asked.admission_id),
        )
        return int(granted)
    taken = sum(admitted(connection, now).values())
    room = budget - schema.stats(connection).sequences_accepted - taken
    granted = min(max(room, 0), asked.n_seq)
    if granted > 0:
        connection.execute(
            "INSERT INTO admission VALUES (?, ?, ?, ?)",
            (asked.admission_id, asked.env, granted, asked.until),
        )
    return granted


def release(connection: schema.Connection, admission_id: str) -> bool:
    sql = "DELETE FROM admission WHERE admission_id = ? RETURNING admission_id"
    return bool(connection.execute(sql, (admission_id,)))


def admitted(connection: schema.Connection, now: float) -> dict[int | None, int]:
    sql = "SELECT env, SUM(n_seq) FROM admission WHERE until > ? GROUP BY env"
    return {env: int(n_seq) for env, n_seq in connection.execute(sql, (now,))}


def free_absent(connection: schema.Connection, live: Collection[int]) -> tuple[int, int]:
    kept = {*live, schema.NO_ENV, None}
    ended = 0
    for (env,) in connection.execute("SELECT DISTINCT env FROM admission"):
        if env not in kept:
            sql = "DELETE FROM admission WHERE env = ? RETURNING env"
            ended += len(connection.execute(sql, (env,)))
    rows = connection.execute("SELECT gid, env FROM groups WHERE state = 'buffered'")
    gids = [gid for gid, env in rows if env not in kept]
    with schema.counting(connection) as counters:
        drop(counters, gids, GroupState.BUFFERED)
    return len(gids), ended
