"""Operations on the run: its document, and admissions of rollouts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field

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


@dataclass(frozen=True)
class LoadRun:
    """The run document as last saved, with the environments of higher ids."""

    after_env: int = -1

    def __call__(self, connection: schema.Connection) -> RunDocument:
        meta, body = schema.read_meta(connection), schema.run_document(connection, schema.RUN)
        sql = "SELECT body FROM run_document WHERE name > ? AND name <= ? ORDER BY name"
        names = (_env_name(self.after_env), _env_name(schema.MAX_INT64))
        envs = tuple(bytes(env) for (env,) in connection.execute(sql, names))
        return RunDocument(meta.revision, meta.generation, body, envs)


def _env_name(env_id: int) -> str:
    """Name of the document of an environment; in the order of the ids."""
    return f"env {env_id + 1:020}"


@dataclass(frozen=True)
class SaveRun:
    """Save the run document and ``envs`` (None: delete it) if ``revision`` is the latest.

    ``fence`` begins the next trainer generation in the same transaction. With ``fork``, the
    first version of its trainer, versions of queued groups after it are no longer versions of the
    current weights and count as older (``wire.lineage``).

    Raises:
        RunChanged: a later revision exists.
    """

    body: bytes
    revision: int
    _: KW_ONLY
    fence: bool = False
    fork: int | None = None
    envs: Mapping[int, bytes | None] = field(default_factory=dict)

    def __call__(self, connection: schema.Connection) -> RunDocument:
        with schema.counting(connection) as counters:
            counters.meta.require_revision(self.revision)
            bodies = {_env_name(env): entry for env, entry in self.envs.items()}
            schema.keep_documents(connection, {schema.RUN: self.body, **bodies})
            counters.set(revision=self.revision + 1)
            if self.fork is not None:
                connection.execute(_FORK, [self.fork] * 7)
            if self.fence:
                counters.set(generation=counters.meta.generation + 1, delivered=0)
            return RunDocument(counters.meta.revision, counters.meta.generation, self.body)


@dataclass(frozen=True)
class Renew:
    """Begin generations that no trainer of the queue of which this is a copy can have.

    That queue may have gone on after the copy. Its generations count registrations, so the
    seconds since the epoch are beyond all of them, and beyond the generations of an earlier copy.
    """

    now: float

    def __call__(self, connection: schema.Connection) -> None:
        with schema.counting(connection) as counters:
            counters.set(generation=max(counters.meta.generation, int(self.now)))


def begin_run(connection: schema.Connection) -> None:
    """Begin another run in the archive, as :func:`reset_run` does; nothing else changes."""
    meta = schema.read_meta(connection)
    body = msgspec.json.encode((meta.last_gid, meta.last_batch))
    schema.keep_document(connection, schema.BEGUN, body)


def run_start(connection: schema.Connection) -> tuple[int, int]:
    """The last group and batch before the run that the archive shows; (0, 0): the first."""
    body = schema.run_document(connection, schema.BEGUN) or b"[0, 0]"
    return msgspec.json.decode(body, type=tuple[int, int])


def reset_run(connection: schema.Connection) -> RunDocument:
    """Delete groups, batches, admissions, fair shares and run, and fence every trainer.

    Group ids, batch numbers, generations and revisions continue.
    """
    with schema.counting(connection) as counters:
        for table in _EMPTIED:
            connection.execute(f"DELETE FROM {table}")
        begin_run(connection)
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


@dataclass(frozen=True)
class Admit:
    """Sequences granted, 0 .. ``grant.n_seq``; recorded until ``grant.until``.

    ``budget`` bounds, over the whole run, the sequences accepted (held, acked and committed)
    plus sequences of admissions that have not ended; it may be negative. A repeated
    ``admission_id`` returns the same grant, with the later end.
    """

    grant: AdmissionGrant
    budget: int
    now: float

    def __call__(self, connection: schema.Connection) -> int:
        grant = self.grant
        connection.execute("DELETE FROM admission WHERE until <= ?", (self.now,))
        known = connection.execute(
            "SELECT n_seq, until FROM admission WHERE admission_id = ?", (grant.admission_id,)
        )
        if known:
            [(granted, until)] = known
            connection.execute(
                "UPDATE admission SET until = ? WHERE admission_id = ?",
                (max(until, grant.until), grant.admission_id),
            )
            return int(granted)
        taken = sum(Admitted(self.now)(connection).values())
        room = self.budget - schema.stats(connection).sequences_accepted - taken
        granted = min(max(room, 0), grant.n_seq)
        if granted > 0:
            connection.execute(
                "INSERT INTO admission VALUES (?, ?, ?, ?)",
                (grant.admission_id, grant.env, granted, grant.until),
            )
        return granted


@dataclass(frozen=True)
class Release:
    """End an admission. False if it is unknown or has ended."""

    admission_id: str

    def __call__(self, connection: schema.Connection) -> bool:
        sql = "DELETE FROM admission WHERE admission_id = ? RETURNING admission_id"
        return bool(connection.execute(sql, (self.admission_id,)))


@dataclass(frozen=True)
class Admitted:
    """Sequences of admissions that have not ended, by env."""

    now: float

    def __call__(self, connection: schema.Connection) -> dict[int | None, int]:
        sql = "SELECT env, SUM(n_seq) FROM admission WHERE until > ? GROUP BY env"
        return {env: int(n_seq) for env, n_seq in connection.execute(sql, (self.now,))}


@dataclass(frozen=True)
class FreeAbsent:
    """Free buffered groups and admissions of environments not in ``live``.

    Returns the number of groups, which count as dropped, and of admissions.
    """

    live: Collection[int]

    def __call__(self, connection: schema.Connection) -> tuple[int, int]:
        kept = {*self.live, schema.NO_ENV, None}
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
