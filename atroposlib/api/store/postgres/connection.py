"""PostgreSQL connection and server: checks, settings, retries. Needs psycopg 3."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeVar

import psycopg
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from atroposlib.api.store.sql.schema import LAYOUT, POSTGRES, Row, tables
from atroposlib.errors import ConfigError, StoreError, StoreFull

T = TypeVar("T")

Raw = psycopg.Connection[Row]

MIN_SERVER_VERSION = 150000
RETRY_S = 0.2  # between two attempts to reach the server
PROBE_INTERVAL_S = 1.0  # between attempts after the timeout: each may take a connect timeout
# The server disconnects a lost replica that holds the lock of the run after 30 s; the lock
# timeout of the other replicas is longer than that.
SETTINGS = """
SET search_path TO "{schema}";
SET client_min_messages TO error;
SET statement_timeout TO '90s';
SET lock_timeout TO '60s';
SET idle_in_transaction_session_timeout TO '30s';
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

    def stop_retrying(self) -> None:
        """End all retries, since the store closes."""
        self._stopped.set()

    def connect(self) -> Raw:
        """A new connection, if this server is durable and not too old."""
        try:
            raw = psycopg.connect(self._address, autocommit=True, **CONNECT_OPTIONS)
        except psycopg.ProgrammingError as cause:  # the error may quote a password
            raise ConfigError("the URL of the PostgreSQL store cannot be read") from cause
        with ExitStack() as undo:
            undo.callback(raw.close)
            # Numbers are sent as bigint, so one prepared statement fits all values.
            raw.adapters.register_dumper(int, Int8Dumper)
            raw.adapters.register_dumper(int, Int8BinaryDumper)
            _require_durable(raw)
            raw.execute(SETTINGS.format(schema=self.schema).encode())
            undo.pop_all()
        return raw

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


def _require_durable(raw: Raw) -> None:
    if raw.info.server_version < MIN_SERVER_VERSION:
        raise ConfigError(
            f"PostgreSQL {raw.info.server_version // 10000} is too old for a store: 15 or later"
        )
    row = raw.execute(
        "SELECT pg_is_in_recovery(), current_setting('transaction_read_only'), "
        "current_setting('fsync')"
    ).fetchone()
    standby, read_only, fsync = row or (True, "on", "off")
    if standby or read_only == "on":
        raise ConfigError(
            "this PostgreSQL server is a standby or read-only: name the primary in --store"
        )
    if fsync == "off":
        raise ConfigError(
            "this PostgreSQL server runs with fsync=off and loses acknowledged groups in a "
            "power cut: turn it on"
        )


def make_tables(server: PostgresServer) -> None:
    """Create schema and tables if missing; ConfigError if they have another layout."""
    try:
        with server.connect() as raw, raw.transaction():
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
                return
            for statement in tables(POSTGRES):
                connection.execute(statement)
    except psycopg.Error as cause:
        raise fault(cause) from cause


def _layout_table(connection: PostgresConnection, schema: str) -> str | None:
    """The table of ``schema`` that holds its layout; None before the tables are made."""
    for name in ("meta", "head"):  # up to layout 2 the table was called head
        if connection.execute("SELECT to_regclass(?)", (f"{schema}.{name}",))[0][0]:
            return name
    return None
