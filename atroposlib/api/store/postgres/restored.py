"""A run on PostgreSQL made of the backup of a data directory.

    backup --rows of each table--> tables of the run
           '-bytes of the segments--> payload

Both databases have the same tables (``sql.schema``), apart from the place of the payloads.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import apsw

from atroposlib.api.store.postgres import PostgresStore
from atroposlib.api.store.sql.schema import Connection, Row, read_meta
from atroposlib.api.store.sqlite import DATABASE
from atroposlib.api.store.sqlite.backup import (
    ARCHIVE,
    Copied,
    Manifest,
    read_manifest,
    renew,
    require_sound,
)
from atroposlib.api.store.sqlite.segment_files import SegmentFiles
from atroposlib.errors import ConfigError

TABLES = (
    "meta",
    "run_document",
    "groups",
    "unconfirmed",
    "batch",
    "group_counts",
    "totals",
    "admission",
    "pinned",
)
ROWS = 512  # of a statement
PAYLOADS = 64  # whose bytes are in memory together


def restore_into(
    url: str, backup: Path, data_dir: Path | None = None, copied: Copied = lambda name, n: None
) -> Manifest:
    """Fill the empty schema of ``url`` with a backup, in one transaction.

    As after a restore into a directory, trainers of the original are refused, and new ids of
    environments begin beyond the ids of the original.

    Args:
        data_dir: data directory of the APIs over ``url``: gets the index of rollouts, with what
            only a trainer reports. None: an API makes an index of the groups.

    Raises:
        ConfigError: a run is in the schema, or a file of the backup is not as it was written.
        StoreError: the server refuses, or does not answer.
    """
    manifest = read_manifest(backup)
    require_sound(backup, manifest, copied)
    database = f"file:{backup / DATABASE}?immutable=1"
    with closing(PostgresStore(url, data_dir=data_dir)) as store:

        def fill(connection: Connection) -> None:
            meta = read_meta(connection)
            if meta.revision or meta.last_gid:
                raise ConfigError(
                    f"a run is in {without_password(url)}: choose another with ?schema=NAME"
                )
            flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            with closing(apsw.Connection(database, flags=flags)) as source:
                for table in TABLES:
                    _copy_table(source, connection, table)
                _copy_payloads(source, connection, SegmentFiles(backup))
            renew(connection, time.time())

        store.do(fill)
        if store.archive is not None:
            _copy_index(backup / ARCHIVE, store.archive.parent)
    return manifest


def _copy_table(source: apsw.Connection, target: Connection, table: str) -> None:
    cursor = source.execute(f"SELECT * FROM {table}")
    target.execute(f"DELETE FROM {table}")
    while rows := list(islice(cursor, ROWS)):
        marks = ", ".join("?" * len(rows[0]))
        target.execute_many(f"INSERT INTO {table} VALUES ({marks})", rows)


def _copy_payloads(source: apsw.Connection, target: Connection, files: SegmentFiles) -> None:
    """Payloads of held and of archived groups: PostgreSQL keeps both in a table."""
    target.execute("DELETE FROM archived")
    for table in ("payload", "archived"):
        cursor = source.execute(f"SELECT gid, segment, start, n_bytes FROM {table}")
        while places := list(islice(cursor, PAYLOADS)):
            bodies = list(_bodies(files, places))
            target.execute_many("INSERT INTO payload VALUES (?, ?)", bodies)
    kept = source.execute("SELECT gid, n_bytes, digest FROM archived")
    while rows := list(islice(kept, ROWS)):
        target.execute_many("INSERT INTO archived VALUES (?, ?, ?)", rows)
    [(bound,)] = source.execute("SELECT bound FROM archive").fetchall()
    target.execute(
        "UPDATE archive SET bound = ?, "
        "n_bytes = (SELECT COALESCE(SUM(n_bytes), 0) FROM archived)",
        (bound,),
    )


def _bodies(files: SegmentFiles, places: Sequence[Row]) -> Iterator[tuple[int, Any]]:
    for gid, segment, start, n_bytes in places:
        try:
            [body] = files.read(segment, [(start, n_bytes)])
        except (OSError, OverflowError):
            body = b""  # damaged in the original too: its digest does not match
        yield gid, body


def _copy_index(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in sorted(source.glob("index*.sqlite")):
        shutil.copyfile(path, target / path.name)


def without_password(url: str) -> str:
    address = url.partition("://")[2]
    return f"postgresql://{address.rpartition('@')[2]}"
