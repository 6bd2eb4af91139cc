"""Conversion of a data directory of layout 6 at its opening. See ``store/sql/rewriting``."""

from __future__ import annotations

import logging

from atroposlib.api.store.sql.rewriting import (
    Convert,
    finish,
    json_groups,
    new_form,
    record_new_form,
)
from atroposlib.api.store.sqlite.database import SqliteTransactions
from atroposlib.api.store.sqlite.opening import LAYOUT
from atroposlib.api.store.sqlite.payload_log import RETIRE, PayloadLog

logger = logging.getLogger(__name__)


def rewrite(database: SqliteTransactions, log: PayloadLog, convert: Convert) -> None:
    """Convert all payloads, also of the archive, and the tables.

    Raises:
        OSError, apsw.Error: the disk fails or is full. Nothing is lost, and the next opening
            goes on.
    """
    converted = 0
    for table in ("payload", "archived"):
        while groups := json_groups(database, table):
            with _transaction(database):
                for gid, _ in groups:
                    _rewrite_group(database, log, table, gid, convert)
            converted += len(groups)
    with _transaction(database):
        finish(database, ["DROP TRIGGER payload_retired"], [RETIRE])
        log.pin_again(database)
        database.execute(f"PRAGMA user_version = {LAYOUT}")
    logger.warning("converted %d groups of an earlier release to the stored form", converted)


class _transaction:
    def __init__(self, database: SqliteTransactions) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.begin()

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._database.commit()
        finally:
            self._database.rollback()  # nothing after a commit


def _rewrite_group(
    database: SqliteTransactions, log: PayloadLog, table: str, gid: int, convert: Convert
) -> None:
    [(segment, start, n_bytes, digest)] = database.execute(
        f"SELECT segment, start, {table}.n_bytes, groups.digest "
        f"FROM {table} JOIN groups USING (gid) WHERE gid = ?",
        (gid,),
    )
    [body] = log.read(segment, [(start, n_bytes)])
    payload = new_form(database, gid, body, digest, convert)
    if payload is None:
        return
    log.replace(database, table, gid, payload)
    record_new_form(database, gid, payload)
    if table == "archived":
        sql = "UPDATE archived SET digest = (SELECT digest FROM groups WHERE gid = ?) WHERE gid = ?"
        database.execute(sql, (gid, gid))
