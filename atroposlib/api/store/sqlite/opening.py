"""Opening of a data directory: new, of this layout, or not safe to open.

Bytes that no row names are deleted at every opening (``payload_log``). So a database that is older
than its payload files must be rejected first, or the later payloads would be deleted. The
write-ahead log holds the last commits. From the opening to the close the header of the database is
marked: with the mark and without a log it lacks the last commits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import apsw

from atroposlib.api.store.sql.schema import tables
from atroposlib.api.store.sqlite.payload_log import LOGGED
from atroposlib.errors import ConfigError

OLD_LAYOUT = 6  # converted at the opening
LAYOUT = 7  # layout of the directory: up to 6 a group was stored as it was posted
IN_USE = (
    0x41545250  # application_id while the log belongs to the database; 0 once it is closed
)


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def begin_use(
    connection: apsw.Connection,
    path: Path,
    had_log: bool,
    payload_files: Sequence[int],
    converts: bool = False,
) -> bool:
    """Create the tables of a new file, or check the file; then mark it as in use.

    Returns whether the file has the layout of an earlier release, if the caller ``converts`` it.

    Args:
        had_log: whether the log existed, with a byte at least, before ``connection`` was made.
        payload_files: numbers of the payload files with at least a byte.

    Raises:
        ConfigError: the file has another layout, is older than the payload files, or misses
            its last commits. Nothing was changed.
    """
    layout = _integer(connection, "PRAGMA user_version")
    if layout == 0:
        _require_no(payload_files, path)
        with connection:  # atomic: a kill in between must leave an empty file
            for statement in tables(LOGGED):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {LAYOUT}")
    elif layout != LAYOUT and not (converts and layout == OLD_LAYOUT):
        raise ConfigError(
            f"{path} has layout {layout}, this release knows {LAYOUT}: finish its run with the "
            "release that wrote it, or choose another --data-dir"
        )
    else:
        _require_commits(connection, path, had_log, payload_files)
    connection.execute(f"PRAGMA application_id = {IN_USE}")
    with suppress(apsw.Error):  # a full disk: the mark stays in the log
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
    return layout == OLD_LAYOUT


def end_use(connection: apsw.Connection) -> None:
    """Record that the log may go; it stays if that cannot be recorded."""
    try:
        connection.execute("PRAGMA application_id = 0")
    except apsw.Error:
        yes = ctypes.c_int(1)
        connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(yes))


def _require_no(payload_files: Sequence[int], path: Path) -> None:
    if payload_files:
        raise ConfigError(
            f"{path} is missing or empty, but {len(payload_files)} payload-*.log of the directory hold "
            "groups: put the database and its -wal file back, or choose another --data-dir for "
            "a new run. Nothing was deleted"
        )


def _require_commits(
    connection: apsw.Connection, path: Path, had_log: bool, payload_files: Sequence[int]
) -> None:
    if _integer(connection, "PRAGMA application_id") == IN_USE and not had_log:
        raise ConfigError(
            f"{log_of(path)} is missing or empty, which holds the last commits of {path}: put it back. "
            "If another program opened the database meanwhile, and so moved them into it, or "
            "to go on without them, which loses groups and repeats batches: sqlite3 "
            f"{path} 'PRAGMA application_id = 0'. Nothing was deleted"
        )
    last = _integer(connection, "SELECT MAX(CAST(no AS INTEGER)) FROM segment")
    later = [no for no in payload_files if no > last]
    if later:
        raise ConfigError(
            f"{path} is older than its payload files: it ends at {last}, and there is "
            f"{later[-1]}. Put the latest copy of the database and its -wal file back, or move "
            "the later files away to go on without their groups. Nothing was deleted"
        )


def _integer(connection: apsw.Connection, sql: str) -> int:
    [(number,)] = connection.execute(sql).fetchall()
    return number if isinstance(number, int) else 0
