"""The backup of a run on PostgreSQL, in the form of the backup of a data directory.

    index of rollouts -> snapshot of the schema --rows of each table--> database of the backup
                                                '-payloads--> segments -> manifest

The way back of ``restored``: what this writes is restored into a data directory or a schema.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw

from atroposlib.api.store.postgres import PostgresStore
from atroposlib.api.store.postgres.restored import PAYLOADS, ROWS, TABLES, without_password
from atroposlib.api.store.sql.schema import Connection, Row, read_meta, tables
from atroposlib.api.store.sqlite import DATABASE
from atroposlib.api.store.sqlite.backup import (
    Copied,
    FileFact,
    Manifest,
    begin_backup,
    fact_of,
    write_manifest,
)
from atroposlib.api.store.sqlite.database import PAGE_BYTES, SqliteConnection
from atroposlib.api.store.sqlite.opening import LAYOUT
from atroposlib.api.store.sqlite.payload_log import LOGGED, SEGMENT_BYTES, PayloadLog
from atroposlib.api.store.sqlite.segment_files import SegmentFiles
from atroposlib.errors import ConfigError

# Keys of the tables that grow with the run, which are read in pages. All further tables are small.
_KEYS = {"groups": "gid", "unconfirmed": "gid", "batch": "no", "pinned": "gid"}
_BODIES = (
    "SELECT payload.gid, body, archived.gid IS NOT NULL, archived.digest FROM payload "
    "LEFT JOIN archived ON archived.gid = payload.gid WHERE payload.gid > ? "
    f"ORDER BY payload.gid LIMIT {PAYLOADS}"
)


def back_up_schema(
    url: str,
    target: Path,
    data_dir: Path | None = None,
    copied: Copied = lambda name, n: None,
    segment_bytes: int = SEGMENT_BYTES,
) -> Manifest:
    """Copy the run in the schema of ``url`` to the folder ``target``, also while APIs write.

    Args:
        data_dir: data directory of an API over ``url``, whose index of rollouts is copied. None:
            the backup has no index, and an API makes one of the groups.

    Raises:
        ConfigError: no run is in the schema, or ``target`` is not empty.
        StoreError: the server refuses, or cannot read a row. ``target`` is no backup then.
    """
    with closing(PostgresStore(url, data_dir=data_dir)) as store:
        if not store.ask(_has_run):
            raise ConfigError(
                f"no run is in {without_password(url)}: name its schema with ?schema=NAME"
            )
        names = begin_backup(store.archive.parent if store.archive else None, target)
        taken = time.time()
        segments = store.ask(lambda source: _copy_schema(source, target, segment_bytes))
    facts: dict[str, FileFact] = {}
    for name in (*names, DATABASE, *segments):
        facts[name] = fact_of(target / name)
        copied(name, facts[name].n_bytes)
    return write_manifest(target, taken, facts)


def _has_run(connection: Connection) -> bool:
    meta = read_meta(connection)
    return bool(meta.revision or meta.last_gid)


def _copy_schema(source: Connection, target: Path, segment_bytes: int) -> list[str]:
    """Write database and segments of the backup; the names of the segments.

    It is repeated after a lost connection, with another snapshot.
    """
    path, files = target / DATABASE, SegmentFiles(target)
    for stale in (path, *map(files.path, files.numbers())):
        stale.unlink(missing_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as raw:
        raw.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        with raw:
            connection = SqliteConnection(raw)
            for statement in tables(LOGGED):
                raw.execute(statement)
            raw.execute("CREATE TABLE pinned (gid INTEGER PRIMARY KEY)")
            for table in TABLES:
                _copy_table(source, connection, table)
            with closing(files):
                _copy_payloads(source, connection, files, segment_bytes)
            [bound] = source.execute("SELECT bound FROM archive")
            connection.execute("UPDATE archive SET bound = ?", bound)
            PayloadLog(files, lambda: 0, segment_bytes).pin_again(connection)
            raw.execute(f"PRAGMA user_version = {LAYOUT}")
    return [files.path(no).name for no in files.numbers()]


def _copy_table(source: Connection, target: Connection, table: str) -> None:
    target.execute(f"DELETE FROM {table}")
    for rows in _pages(source, table):
        marks = ", ".join("?" * len(rows[0]))
        target.execute_many(f"INSERT INTO {table} VALUES ({marks})", rows)


def _pages(source: Connection, table: str) -> Iterator[list[Row]]:
    if table not in _KEYS:
        if rows := source.execute(f"SELECT * FROM {table}"):
            yield rows
        return
    key = _KEYS[table]  # the first column of each of these tables
    sql = f"SELECT * FROM {table} WHERE {key} > ? ORDER BY {key} LIMIT {ROWS}"
    last = -1
    while rows := source.execute(sql, (last,)):
        yield rows
        last = rows[-1][0]


def _copy_payloads(
    source: Connection, target: Connection, files: SegmentFiles, segment_bytes: int
) -> None:
    """Payloads of held and of archived groups, which PostgreSQL keeps in a table."""
    no, end, last = 1, 0, -1
    while rows := source.execute(_BODIES, (last,)):
        held, archived, last = list[Row](), list[Row](), rows[-1][0]
        if end >= segment_bytes:
            files.sync(no)
            no, end = no + 1, 0
            target.execute("INSERT INTO segment VALUES (?, 0, 0, 0)", (no,))
        start = end
        for gid, body, is_archived, digest in rows:
            place = (gid, no, end, len(body))
            end += len(body)
            if is_archived:
                archived.append((*place, digest))
            else:
                held.append(place)
        files.write(no, start, [body for _, body, *_ in rows])
        target.execute_many("INSERT INTO payload VALUES (?, ?, ?, ?)", held)
        target.execute_many("INSERT INTO archived VALUES (?, ?, ?, ?, ?)", archived)
        target.execute("UPDATE segment SET n_bytes = ? WHERE no = ?", (end, no))
    files.sync(no)
