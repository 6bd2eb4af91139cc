"""PostgreSQL connection and server: checks, settings, retries. Needs psycopg 3."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from atroposlib.api.store.sql.schema import LAYOUT, POSTGRES, Row, tables
from atroposlib.errors import ConfigError, StoreError, StoreFull

T = TypeVar("T")
logger = logging.getLogger(__name__)

MIN_SERVER_VERSION = 150000
RETRY_S = 0.2  # between two attempts to reach the server
WAIT_LOG_S = 10.0  # between two log lines about a server that is awaited at the start
READ_SILENCE_S = 15.0  # of a server that a reader waits for; then it counts as unreachable
WRITE_SILENCE_S = 100.0  # longer than the timeouts by which a live server ends a statement
CLOSING_SILENCE_S = 5.0  # while the store closes
PROBE_INTERVAL_S = 1.0  # between attempts after the timeout: each may take a connect timeout
# The server disconnects a frozen replica that holds the lock of the run after 10 s; a live one
# computes for 2.8 s at most between two statements (a batch of 50,000 rows is chosen). The lock
# timeout of the other replicas is longer than that.
SETTINGS = """
SET search_path TO "{schema}";
SET client_min_messages TO error;
SET statement_timeout TO '90s';
SET lock_timeout TO '60s';
SET idle_in_transaction_session_timeout TO '10s';
SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') IN ('off', 'local')
"""
CONNECT_OPTIONS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "atropos",
}
# Parts of libpq's messages about a connection that no wait makes possible.
PERMANENT = ("authentication failed", "does not exist", "no pg_hba.conf", "no password")
# Exceptions of psycopg, and of text that no database can hold.
FAULTS = (psycopg.Error, UnicodeEncodeError)


def fault(cause: Exception) -> StoreError:
    if isinstance(cause, StoreError):
        return cause
    kind = StoreFull if isinstance(cause, psycopg.errors.DiskFull) else StoreError
    message = str(cause).strip().split("\n")[0]  # further lines may quote values
    error = kind(f"PostgreSQL: {message or type(cause).__name__}")
    error.__cause__ = cause
    return error


class Raw(psycopg.Connection[Row]):
    """Connection that is closed when the server sends nothing for ``silence_s``.

    A frozen server acknowledges TCP packets, so no timeout of the kernel ends the wait, and
    ``statement_timeout`` is the frozen server's own.
    """

    silence_s = WRITE_SILENCE_S
    closing: threading.Event | None = None  # set while the store closes

    def wait(self, gen: PQGen[T], *args: Any, **settings: Any) -> T:
        return super().wait(self._bounded(gen), *args, **settings)

    def _bounded(self, gen: PQGen[T]) -> PQGen[T]:
        heard = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                if ready := (yield wanted):
                    heard = time.monotonic()
                closing = self.closing is not None and self.closing.is_set()
                bound = min(self.silence_s, CLOSING_SILENCE_S) if closing else self.silence_s
                if not ready and time.monotonic() > heard + bound:
                    self.close()
                    raise psycopg.OperationalError(f"the server sent nothing for {bound:g} s")
                wanted = gen.send(ready)
        except StopIteration as done:
            result: T = done.value
            return result


class PostgresConnection:
    """See :class:`atroposlib.api.store.sql.schema.Connection`."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        with self.raw.cursor(binary=True) as cursor:  # half the bytes of hexadecimal payloads
            cursor.execute(_spelled(sql), [_outward(value) for value in values])
            if cursor.description is None:
                return []
            return [_inward(row) for row in cursor.fetchall()]

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        with self.raw.cursor() as cursor:
            cursor.executemany(_spelled(sql), [[_outward(v) for v in row] for row in rows])


@lru_cache(maxsize=1024)
def _spelled(sql: str) -> bytes:
    return sql.replace("%", "%%").replace("?", "%s").encode()


def _outward(value: Any) -> Any:
    """Escape NUL, which a key of a client may hold and text of PostgreSQL may not."""
    if isinstance(value, str) and ("\0" in value or "\\" in value):
        return value.replace("\\", "\\\\").replace("\0", "\\0")
    return value


def _inward(row: Row) -> Row:
    if any(isinstance(value, str) and "\\" in value for value in row):
        return tuple(_unescaped(v) if isinstance(v, str) else v for v in row)
    return row


def _unescaped(text: str) -> str:
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))


# --- the server -----------------------------------------------------------------------


class PostgresServer:
    """Address, schema and run lock of a server, with retries. Thread-safe."""

    def __init__(self, address: str, schema: str, reconnect_timeout_s: float) -> None:
        self._address = address
        self.schema = schema
        self.lock = int.from_bytes(
            blake2b(f"atropos:{schema}".encode(), digest_size=8).digest(), "big", signed=True
        )
        self._reconnect_timeout_s = reconnect_timeout_s
        self._stopped = threading.Event()
        self._outage: _Outage | None = None
        self._ahead_s: float | None = None  # clock of the server minus the monotonic one

    def stop_retrying(self) -> None:
        """End all retries, since the store closes."""
        self._stopped.set()

    def now(self) -> float:
        """The clock of the server (s since the epoch), as of its last reply to this process.

        Replicas on several hosts compare leases by it.
        """
        return time.time() if self._ahead_s is None else time.monotonic() + self._ahead_s

    def record_time(self, epoch_s: float) -> None:
        """Take the clock of the server from a reply that has just arrived."""
        self._ahead_s = epoch_s - time.monotonic()

    def connect(self, silence_s: float = WRITE_SILENCE_S) -> Raw:
        """A new connection, if this server is durable and not too old."""
        try:
            options = {**CONNECT_OPTIONS, **conninfo_to_dict(self._address)}
            raw = Raw.connect(autocommit=True, **options)
        except psycopg.ProgrammingError as cause:  # the error may quote a password
            raise ConfigError("the URL of the PostgreSQL store cannot be read") from cause
        with ExitStack() as undo:
            undo.callback(raw.close)
            raw.silence_s, raw.closing = silence_s, self._stopped
            # Numbers are sent as bigint, so one prepared statement fits all values.
            raw.adapters.register_dumper(int, Int8Dumper)
            raw.adapters.register_dumper(int, Int8BinaryDumper)
            self.record_time(_require_durable(raw))
            raw.execute(SETTINGS.format(schema=self.schema).encode())
            undo.pop_all()
        return raw

    def await_start(self, attempt: Callable[[], T], timeout_s: float) -> T:
        """Repeat ``attempt`` while the server cannot be reached, and log what is awaited.

        Raises:
            StoreError: not reached within ``timeout_s``, or never reachable with this URL.
        """
        began, logged = time.monotonic(), float("-inf")
        while True:
            try:
                return attempt()
            except psycopg.Error as cause:
                now, permanent = time.monotonic(), any(
                    part in str(cause) for part in PERMANENT
                )
                if not is_away(cause) or permanent or now >= began + timeout_s:
                    raise fault(cause) from cause
                if now >= logged + WAIT_LOG_S:
                    logged = now
                    logger.warning(f"waiting at most {timeout_s:g} s: {fault(cause)}")
            self._stopped.wait(min(1.0, timeout_s))

    def retry_while_away(self, attempt: Callable[[], T]) -> T:
        """Repeat ``attempt`` while the server is unreachable, for ``reconnect_timeout_s``.

        ``attempt`` must be safe to repeat. After the timeout the last error is raised, and
        further calls raise at once until the next probe.
        """
        while True:
            self._raise_if_away()
            try:
                result = attempt()
            except (psycopg.OperationalError, psycopg.InterfaceError) as cause:
                if not is_away(cause):
                    raise
                if self._timed_out(cause) or self._stopped.wait(RETRY_S):
                    raise
            else:
                self._outage = None
                return result

    def _timed_out(self, cause: Exception) -> bool:
        now, known = time.monotonic(), self._outage
        same = known is not None and now < known.latest + self._reconnect_timeout_s
        first = known.first if known and same else now  # no call since: a new outage
        self._outage = _Outage(first, now, cause)
        return now >= first + self._reconnect_timeout_s

    def _raise_if_away(self) -> None:
        outage = self._outage
        if outage is not None and outage.latest >= outage.first + self._reconnect_timeout_s:
            if time.monotonic() < outage.latest + PROBE_INTERVAL_S:
                raise psycopg.OperationalError("the server is away") from outage.cause


@dataclass(frozen=True)
class _Outage:
    """First and last failure of an outage (s, monotonic), and its error."""

    first: float
    latest: float
    cause: Exception


def is_away(cause: Exception) -> bool:
    """Whether the server is unreachable or not ready, rather than rejecting the call."""
    state = getattr(cause, "sqlstate", None)
    # No state: the connection broke. 57P: shutdown or start. 08: connection errors.
    # 25006: a server that just became a standby.
    return state is None or state.startswith(("57P", "08")) or state == "25006"


def _require_durable(raw: Raw) -> float:
    """The clock of the server (s since the epoch), if it is durable and not too old."""
    if raw.info.server_version < MIN_SERVER_VERSION:
        raise ConfigError(
            f"PostgreSQL {raw.info.server_version // 10000} is too old for a store: 15 or later"
        )
    row = raw.execute(
        "SELECT pg_is_in_recovery(), current_setting('transaction_read_only'), "
        "current_setting('fsync'), extract(epoch FROM clock_timestamp())::float8"
    ).fetchone()
    standby, read_only, fsync, epoch_s = row or (True, "on", "off", 0.0)
    if standby or read_only == "on":
        raise ConfigError(
            "this PostgreSQL server is a standby or read-only: name the primary in --store"
        )
    if fsync == "off":
        raise ConfigError(
            "this PostgreSQL server runs with fsync=off and loses acknowledged groups in a "
            "power cut: turn it on"
        )
    return float(epoch_s)


# Emptied by the recovery from a crash, and empty on a standby: see PostgresDatabase.
_UNCRASHED = "CREATE UNLOGGED TABLE uncrashed (id TEXT NOT NULL)"
# A retired payload stays where it is, by a row of ``archived``; a statement counts what it retired.
# A change of ``archive`` beyond its bound frees the oldest that are not pinned.
_ARCHIVE = """
CREATE TABLE archive (bound BIGINT NOT NULL, n_bytes BIGINT NOT NULL);
INSERT INTO archive VALUES (0, 0);
CREATE TABLE archived (
    gid BIGINT PRIMARY KEY, n_bytes BIGINT NOT NULL, digest BYTEA NOT NULL, media TEXT NOT NULL);
CREATE TABLE pinned (gid BIGINT PRIMARY KEY);
CREATE FUNCTION retired() RETURNS BIGINT LANGUAGE sql AS $$  -- bytes, by this statement
    SELECT COALESCE(NULLIF(current_setting('atropos.retired', true), ''), '0')::BIGINT $$;
CREATE FUNCTION retire() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE size BIGINT; BEGIN
    IF pg_trigger_depth() > 1 THEN RETURN old; END IF;  -- of free()
    IF EXISTS (SELECT 1 FROM archived WHERE gid = old.gid) THEN RETURN NULL; END IF;  -- a reset
    INSERT INTO archived SELECT gid, groups.n_bytes, digest, media FROM groups, archive
        WHERE gid = old.gid AND bound > 0 RETURNING n_bytes INTO size;
    IF size IS NULL THEN RETURN old; END IF;
    PERFORM set_config('atropos.retired', (retired() + size)::TEXT, true);
    RETURN NULL;
END $$;
CREATE FUNCTION count_retired() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF pg_trigger_depth() = 1 AND retired() > 0 THEN
        UPDATE archive SET n_bytes = n_bytes + retired();
        PERFORM set_config('atropos.retired', '0', true);
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION free() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE one RECORD; held BIGINT := new.n_bytes; BEGIN
    FOR one IN SELECT gid, n_bytes FROM archived
        WHERE gid NOT IN (SELECT gid FROM pinned) ORDER BY gid LOOP
        EXIT WHEN held <= new.bound;
        DELETE FROM payload WHERE gid = one.gid;
        DELETE FROM archived WHERE gid = one.gid;
        held := held - one.n_bytes;
    END LOOP;
    UPDATE archive SET n_bytes = held WHERE n_bytes <> held;
    RETURN NULL;
END $$;
CREATE TRIGGER payload_retired BEFORE DELETE ON payload FOR EACH ROW EXECUTE FUNCTION retire();
CREATE TRIGGER payload_counted AFTER DELETE ON payload EXECUTE FUNCTION count_retired();
CREATE TRIGGER archive_full AFTER UPDATE ON archive FOR EACH ROW
    WHEN (new.n_bytes > new.bound) EXECUTE FUNCTION free()
"""


def make_tables(server: PostgresServer) -> None:
    """Create schema and tables if missing.

    Raises:
        ConfigError: they have another layout, or a pooler shares sessions.
        psycopg.Error: the server cannot be reached, or refuses.
    """
    with server.connect() as raw:
        _require_session(server, raw)
        with raw.transaction():
            raw.execute(f"SELECT pg_advisory_xact_lock({server.lock})".encode())
            connection = PostgresConnection(raw)
            if not connection.execute(
                "SELECT 1 FROM pg_namespace WHERE nspname = ?", (server.schema,)
            ):
                connection.execute(f'CREATE SCHEMA "{server.schema}"')
            table = _layout_table(connection, server.schema)
            if table is not None:
                [(layout,)] = connection.execute(f"SELECT layout FROM {table}")
                if layout != LAYOUT:
                    raise ConfigError(
                        f"schema {server.schema} has layout {layout}, this release knows "
                        f"{LAYOUT}: choose another with ?schema="
                    )
            else:
                for statement in tables(POSTGRES):
                    connection.execute(statement)
            # Only if missing: a role may use tables that it may not create.
            for name, made in (("archive", _ARCHIVE), ("uncrashed", _UNCRASHED)):
                sql, table = "SELECT to_regclass(?)", f"{server.schema}.{name}"
                if connection.execute(sql, (table,)) == [(None,)]:
                    raw.execute(made.encode())


def _require_session(server: PostgresServer, raw: Raw) -> None:
    """Refuse a pooler that gives each transaction another session.

    Settings and prepared statements belong to a session. A pooler shows in the process id
    that it gave to the client; the session of an idle client then serves another one.
    """
    backend = _backend(raw)
    if backend == raw.info.backend_pid:
        return
    with server.connect() as other:
        with other.transaction():
            _backend(other)
            during = _backend(raw)
        if during == backend == _backend(raw):
            return
    raise ConfigError(
        "a pooler in transaction mode (PgBouncer or its like) is in front of this PostgreSQL "
        "server: name the server itself in --store, or a pooler in session mode"
    )


def _backend(raw: Raw) -> int:
    [(pid,)] = raw.execute("SELECT pg_backend_pid()").fetchall()
    return int(pid)


def _layout_table(connection: PostgresConnection, schema: str) -> str | None:
    """The table of ``schema`` that holds its layout; None before the tables are made."""
    for name in ("meta", "head"):  # up to layout 2 the table was called head
        if connection.execute("SELECT to_regclass(?)", (f"{schema}.{name}",))[0][0]:
            return name
    return None
