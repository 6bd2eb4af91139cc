"""PostgreSQL store: a schema per run, shared by several API replicas.

    put, claim, ack ... -> writer thread -> BEGIN, lock of the run, ..., COMMIT
    read, stats, load   -> up to four connections of a snapshot each, outside the lock

Replicas take the lock of the run in turns, so each transaction reads the commits before it.
If the server is unreachable or sends nothing, operations retry until a timeout. If the response to a COMMIT
is lost, its outcome is read from the server before the caller gets a result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from atroposlib.api.common.records import StoreStats, digest_of
from atroposlib.api.store.sql.rewriting import Convert
from atroposlib.api.store.sql.schema import Connection, for_all, stats
from atroposlib.api.store.sql.sql_store import DEFAULT_MAX_BYTES, Store
from atroposlib.api.store.sql.writer import Writer
from atroposlib.errors import ConfigError

SCHEMA = "atropos"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
START_TIMEOUT_S = 120.0  # limit for the server at the start
RECONNECT_TIMEOUT_S = 20.0  # limit of an operation while the server is unreachable


class PostgresStore(Store):
    """See :class:`atroposlib.api.store.sql.sql_store.Store`.

    Args:
        url: ``postgresql://user@host/database``, with ``?schema=name`` for another schema
            than ``atropos``. A schema holds a single run; it is created if missing.
        max_bytes: bound on the bytes of stored payloads.
        archive_bytes: retired payloads kept for the explorer; 0 frees all, None: no change.
        data_dir: for the index of rollouts, a file per replica; None: in memory.
        convert: from the JSON of a group of an earlier release to the stored form; None refuses
            the tables of that release.
        reconnect_timeout_s: retry period of an operation while the server is unreachable.
        start_timeout_s: wait for a server that is unreachable at the start.

    Raises:
        ConfigError: psycopg is not installed; the server is older than 15, a standby,
            read-only, without fsync or behind a pooler in transaction mode; or the tables
            have another layout.
        StoreError: the server is unreachable.
    """

    shared = True

    def __init__(
        self,
        url: str,
        max_bytes: int = DEFAULT_MAX_BYTES,
        reconnect_timeout_s: float = RECONNECT_TIMEOUT_S,
        start_timeout_s: float = START_TIMEOUT_S,
        archive_bytes: int | None = None,
        data_dir: Path | None = None,
        convert: Convert | None = None,
    ) -> None:
        try:
            from atroposlib.api.store.postgres import connection, database
            from atroposlib.api.store.postgres.tables import make_tables
        except ImportError as cause:
            raise ConfigError(
                "a store on PostgreSQL needs psycopg: pip install 'atropos-rl[postgres]'"
            ) from cause
        address, schema = split_schema(url)
        self._server = connection.PostgresServer(address, schema, reconnect_timeout_s)
        self._server.await_start(lambda: make_tables(self._server, convert), start_timeout_s)
        self._readers = database.PostgresReaders(self._server)
        writer = Writer(database.PostgresDatabase(self._server))
        super().__init__(writer, self._readers.run, max_bytes)
        if archive_bytes is not None:
            self.do(lambda c: c.execute("UPDATE archive SET bound = ?", (archive_bytes,)))
        if data_dir is not None:  # the directory may have served several databases
            name = f"postgres-{digest_of(url.encode()).hex()[:8]}"
            self.archive = data_dir / "archive" / name / "index.sqlite"

    _archived = "SELECT digest, body FROM archived JOIN payload USING (gid) WHERE gid = ?"

    def pin(self, gids: Sequence[int], kept: bool = True) -> None:
        [(bound,)] = self.ask(lambda c: c.execute("SELECT bound FROM archive"))
        if not bound:
            super().pin(gids, kept)
        sql = (
            "INSERT INTO pinned SELECT gid FROM payload WHERE gid IN {} ON CONFLICT DO NOTHING"
        )
        sql = sql if kept else "DELETE FROM pinned WHERE gid IN {}"
        self.do(lambda c: for_all(c, sql, gids))

    def stats(self) -> StoreStats:
        def look(connection: Connection) -> StoreStats:
            totals = stats(connection)
            [(n_bytes,)] = connection.execute("SELECT n_bytes FROM archive")
            return replace(totals, disk_bytes=totals.retained_bytes + n_bytes)

        return self.ask(look)

    def now(self) -> float:
        return self._server.now()

    def close(self) -> None:
        """Finish pending operations and disconnect. Idempotent."""
        self._server.stop_retrying()
        self._writer.close()
        self._readers.close()


def split_schema(url: str) -> tuple[str, str]:
    """The URL as libpq takes it, and the schema.

    Example: "postgresql://u@h/d?schema=b&sslmode=require" -> ("...?sslmode=require", "b").

    Raises:
        ConfigError: the name of the schema is invalid.
    """
    address, _, query = url.partition("?")
    schema, rest = SCHEMA, []
    for part in query.split("&") if query else []:
        name, _, value = part.partition("=")
        if name == "schema":
            schema = value
        else:
            rest.append(part)
    if not _NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise ConfigError(
            f"schema {schema!r} of the store: use lower case letters, digits and _, at most "
            "63 characters, and no pg_ in front"
        )
    return address + ("?" + "&".join(rest) if rest else ""), schema
