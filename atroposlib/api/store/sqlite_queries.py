"""What the SQLite store says to SQLite, one function for each verb of the seam.

Each runs inside the writer's transaction. Metadata and payloads live in two tables: a
change of state then rewrites a narrow row and not the pages of a payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import apsw

from atroposlib.api.records import (
    Batch,
    Chooser,
    GroupState,
    GroupSummary,
    NewGroup,
    Stored,
    StoreStats,
    Tally,
)
from atroposlib.api.store.base import checked, require_owner
from atroposlib.errors import ConfigError, Fenced, KeyConflict

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE grp (
    gid      INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused, so it tells age
    key      TEXT UNIQUE,
    env      INTEGER,
    n_seq    INTEGER NOT NULL,
    version  INTEGER,
    digest   BLOB NOT NULL,
    state    TEXT NOT NULL,
    batch_no INTEGER
);
CREATE INDEX grp_held ON grp (state, env, n_seq) WHERE state <> 'acked';
CREATE INDEX grp_batch ON grp (batch_no) WHERE batch_no IS NOT NULL;
CREATE TABLE payload (gid INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE batch (
    no          INTEGER PRIMARY KEY AUTOINCREMENT,
    n_seq       INTEGER NOT NULL,
    generation  INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    lease_until REAL NOT NULL,
    acked       INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX batch_open ON batch (no) WHERE acked = 0;
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE document (name TEXT PRIMARY KEY, body BLOB NOT NULL);
INSERT INTO counter VALUES ('generation', 0);
"""


def connect(path: Path) -> apsw.Connection:
    """Open the file, making the tables of a new one.

    Raises:
        ConfigError: a later release wrote the file.
    """
    connection = apsw.Connection(str(path))
    for pragma in (
        "page_size = 16384",  # 1.8 times the throughput of 4096 for payloads of this size
        "journal_mode = WAL",
        "synchronous = FULL",  # NORMAL loses acknowledged groups in a power cut
        "wal_autocheckpoint = 1000",
        "cache_size = -16000",
    ):
        list(connection.execute(f"PRAGMA {pragma}"))
    version = _value(connection, "PRAGMA user_version")
    if version == 0:
        with connection:  # both or neither: a kill in between must leave a new file
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif version != SCHEMA_VERSION:
        connection.close()
        raise ConfigError(
            f"{path} has layout {version}, this release knows {SCHEMA_VERSION}: "
            "choose another --data-dir"
        )
    return connection


def put(
    connection: apsw.Connection, groups: Sequence[NewGroup], digests: Sequence[bytes]
) -> list[Stored]:
    return [_put_one(connection, group, digest) for group, digest in zip(groups, digests)]


def _put_one(connection: apsw.Connection, group: NewGroup, digest: bytes) -> Stored:
    if group.key is not None:
        known = _row(
            connection, "SELECT gid, digest, state FROM grp WHERE key = ?", (group.key,)
        )
        if known is not None:
            gid, old_digest, state = known
            if old_digest != digest:
                raise KeyConflict(f"idempotency key {group.key!r} came with other content")
            return Stored(gid, duplicate=True, state=GroupState(state))
    state = GroupState.BUFFERED if group.buffered else GroupState.PENDING
    gid = _value(
        connection,
        "INSERT INTO grp (key, env, n_seq, version, digest, state) "
        "VALUES (?, ?, ?, ?, ?, ?) RETURNING gid",
        (group.key, group.env, group.n_seq, group.version, digest, state.value),
    )
    connection.execute("INSERT INTO payload VALUES (?, ?)", (gid, group.payload))
    return Stored(gid, duplicate=False, state=state)


def release(connection: apsw.Connection, gids: Sequence[int]) -> None:
    _move(connection, gids, GroupState.BUFFERED, GroupState.PENDING, None)


def next_generation(connection: apsw.Connection) -> int:
    return int(
        _value(
            connection,
            "UPDATE counter SET value = value + 1 WHERE name = 'generation' RETURNING value",
        )
    )


def claim(
    connection: apsw.Connection, generation: int, size: int, choose: Chooser, until: float
) -> Batch | str:
    current = _generation(connection)
    if generation != current:
        raise Fenced(f"trainer generation {generation} was replaced by {current}")
    opened = list(
        connection.execute("SELECT no, epoch, n_seq FROM batch WHERE acked = 0 ORDER BY no")
    )
    for no, epoch, n_seq in opened:
        if n_seq != size:
            _dissolve(connection, no)
            continue
        connection.execute(
            "UPDATE batch SET epoch = ?, generation = ?, lease_until = ? WHERE no = ?",
            (epoch + 1, generation, until, no),
        )
        return Batch(no, epoch + 1, _members(connection, no), generation)
    return _form(connection, generation, size, choose, until)


def _form(
    connection: apsw.Connection, generation: int, size: int, choose: Chooser, until: float
) -> Batch | str:
    queue = connection.execute(
        "SELECT gid, env, n_seq, version FROM grp WHERE state = 'pending' ORDER BY gid"
    )
    selection = choose([GroupSummary(*row) for row in queue])
    if not selection.gids:
        return selection.blocked_reason or "no batch can be formed"
    no = _value(
        connection,
        "INSERT INTO batch (n_seq, generation, epoch, lease_until) "
        "VALUES (?, ?, 1, ?) RETURNING no",
        (size, generation, until),
    )
    _move(connection, selection.gids, GroupState.PENDING, GroupState.LEASED, no)
    return Batch(no, 1, selection.gids, generation)


def _dissolve(connection: apsw.Connection, no: int) -> None:
    gids = _members(connection, no)
    _move(connection, gids, GroupState.LEASED, GroupState.PENDING, None)
    connection.execute("DELETE FROM batch WHERE no = ?", (no,))


def read(connection: apsw.Connection, gids: Sequence[int]) -> list[bytes]:
    payloads = []
    for gid in gids:
        row = _row(
            connection,
            "SELECT digest, body FROM grp LEFT JOIN payload USING (gid) WHERE gid = ?",
            (gid,),
        )
        digest, body = row if row is not None else (b"", None)
        payloads.append(checked(gid, body, digest))
    return payloads


def extend(
    connection: apsw.Connection, no: int, generation: int, epoch: int, until: float
) -> None:
    _require_owner(connection, no, generation, epoch)
    connection.execute("UPDATE batch SET lease_until = ? WHERE no = ?", (until, no))


def ack(connection: apsw.Connection, no: int, generation: int, epoch: int) -> bool:
    _require_owner(connection, no, generation, epoch)
    if _value(connection, "SELECT acked FROM batch WHERE no = ?", (no,)):
        return False
    gids = _members(connection, no)
    connection.execute("UPDATE batch SET acked = 1 WHERE no = ?", (no,))
    _move(connection, gids, GroupState.LEASED, GroupState.ACKED, no)
    connection.executemany("DELETE FROM payload WHERE gid = ?", ((gid,) for gid in gids))
    return True


def load(connection: apsw.Connection, name: str) -> bytes | None:
    row = _row(connection, "SELECT body FROM document WHERE name = ?", (name,))
    return None if row is None else bytes(row[0])


def save(connection: apsw.Connection, name: str, document: bytes) -> None:
    connection.execute("INSERT OR REPLACE INTO document VALUES (?, ?)", (name, document))


def buffered(connection: apsw.Connection) -> list[tuple[int, int | None, int]]:
    rows = connection.execute(
        "SELECT gid, env, n_seq FROM grp WHERE state = 'buffered' ORDER BY gid"
    )
    return [(gid, env, n_seq) for gid, env, n_seq in rows]


def stats(connection: apsw.Connection) -> StoreStats:
    kinds = connection.execute(
        "SELECT state, env, n_seq, count(*) FROM grp WHERE state <> 'acked' "
        "GROUP BY state, env, n_seq"
    )
    tallies = tuple(
        Tally(GroupState(state), env, n_seq, groups) for state, env, n_seq, groups in kinds
    )
    acked = _value(connection, "SELECT count(*) FROM batch WHERE acked = 1")
    delivered = _value(
        connection,
        "SELECT count(*) FROM batch WHERE generation = ?",
        (_generation(connection),),
    )
    return StoreStats(tallies=tallies, batches_acked=acked, delivered=delivered)


def reset(connection: apsw.Connection) -> None:
    next_generation(connection)
    for table in ("grp", "payload", "batch", "document"):
        connection.execute(f"DELETE FROM {table}")


# --- small parts --------------------------------------------------------------------


def _row(connection: apsw.Connection, sql: str, values: tuple[Any, ...] = ()) -> Any:
    """The first row, or None."""
    rows = list(connection.execute(sql, values))
    return rows[0] if rows else None


def _value(connection: apsw.Connection, sql: str, values: tuple[Any, ...] = ()) -> Any:
    return _row(connection, sql, values)[0]


def _generation(connection: apsw.Connection) -> int:
    return int(_value(connection, "SELECT value FROM counter WHERE name = 'generation'"))


def _members(connection: apsw.Connection, no: int) -> tuple[int, ...]:
    rows = connection.execute("SELECT gid FROM grp WHERE batch_no = ? ORDER BY gid", (no,))
    return tuple(gid for (gid,) in rows)


def _move(
    connection: apsw.Connection,
    gids: Iterable[int],
    before: GroupState,
    after: GroupState,
    no: int | None,
) -> None:
    connection.executemany(
        "UPDATE grp SET state = ?, batch_no = ? WHERE gid = ? AND state = ?",
        ((after.value, no, gid, before.value) for gid in gids),
    )


def _require_owner(connection: apsw.Connection, no: int, generation: int, epoch: int) -> None:
    known = 0 < no < 2**63  # SQLite has no larger integers, and callers may send any
    sql = "SELECT generation, epoch FROM batch WHERE no = ?"
    owner = _row(connection, sql, (no,)) if known else None
    require_owner(no, owner, generation, epoch, _generation(connection))
