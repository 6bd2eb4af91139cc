"""Connections to PostgreSQL that keep the promises, and patience with a lost server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

import psycopg
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from atroposlib.api.store.postgres.connection import PostgresConnection, Raw, fault
from atroposlib.api.store.sql.schema import LAYOUT, POSTGRES, tables
from atroposlib.errors import ConfigError

T = TypeVar("T")

OLDEST_SERVER = 150000
RETRY_S = 0.2  # between two looks for a server that went away
RELOOK_S = 1.0  # the same once patience is over: a look may take as long as a connection
# Whoever holds the lock of the run and falls silent (a replica whose machine is lost) is
# cut off after 30 s, and nobody waits longer for the lock than that would take.
SETTINGS = """
SET search_path TO "{schema}";
SET client_min_messages TO error;
SET statement_timeout TO '90s';
SET lock_timeout TO '60s';
SET idle_in_transaction_session_timeout TO '30s';
SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') IN ('off', 'local')
"""
CONNECT: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "atropos",
}


class Server:
    """Where the run is kept. Thread-safe."""

    def __init__(self, address: str, schema: str, patience_s: float) -> None:
        self._address = address
        self.schema = schema
        self.lock = int.from_bytes(
            blake2b(f"atropos:{schema}".encode(), digest_size=8).digest(), "big", signed=True
        )
        self._patience_s = patience_s
        self._given_up = threading.Event()
        self._outage: _Outage | None = None

    def give_up(self) -> None:
        """Wait no more for a server that is away: the store closes."""
        self._given_up.set()

    def connect(self) -> Raw:
        """A new connection.

        Raises:
            ConfigError: this server cannot keep the promises.
            psycopg.OperationalError: it cannot be reached now.
        """
        try:
            raw = psycopg.connect(self._address, autocommit=True, **CONNECT)
        except psycopg.ProgrammingError as cause:  # not a URL: it may hold a password
            raise ConfigError("the URL of the PostgreSQL store cannot be read") from cause
        with ExitStack() as undo:
            undo.callback(raw.close)
            # Numbers go out as bigint: a statement prepared once then fits all values.
            raw.adapters.register_dumper(int, Int8Dumper)
            raw.adapters.register_dumper(int, Int8BinaryDumper)
            _require_trustworthy(raw)
            raw.execute(SETTINGS.format(schema=self.schema).encode())
            undo.pop_all()
        return raw

    def persist(self, attempt: Callable[[], T]) -> T:
        """``attempt``, again and again while the server is away, for ``patience_s``.

        Only for what may happen twice. Raises what the last one raised; once the patience
        with an outage is over, further calls learn so at once.
        """
        while True:
            self._raise_if_known_to_be_away()
            try:
                result = attempt()
            except (psycopg.OperationalError, psycopg.InterfaceError) as cause:
                if not is_away(cause):
                    raise
                if self._patience_is_over(cause) or self._given_up.wait(RETRY_S):
                    raise
            else:
                self._outage = None
                return result

    def _patience_is_over(self, cause: Exception) -> bool:
        now, known = time.monotonic(), self._outage
        same = known is not None and now < known.latest + self._patience_s
        first = known.first if known and same else now  # nobody called since: another one
        self._outage = _Outage(first, now, cause)
        return now >= first + self._patience_s

    def _raise_if_known_to_be_away(self) -> None:
        outage = self._outage
        if outage is not None and outage.latest >= outage.first + self._patience_s:
            if time.monotonic() < outage.latest + RELOOK_S:
                raise psycopg.OperationalError("the server is away") from outage.cause


@dataclass(frozen=True)
class _Outage:
    """When it was seen first and last (s, monotonic), and how."""

    first: float
    latest: float
    cause: Exception


def is_away(cause: Exception) -> bool:
    """Whether the server is lost or not ready, rather than unwilling."""
    state = getattr(cause, "sqlstate", None)
    # Without a state the connection broke; 57P is a shutdown or a start, 08 the line,
    # 25006 a server that just became a standby.
    return state is None or state.startswith(("57P", "08")) or state == "25006"


def _require_trustworthy(raw: Raw) -> None:
    if raw.info.server_version < OLDEST_SERVER:
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


def make_tables(server: Server) -> None:
    """Make schema and tables where they are missing.

    Raises:
        ConfigError: another release made them.
        StoreError: the server refused.
    """
    try:
        with server.connect() as raw, raw.transaction():
            raw.execute(f"SELECT pg_advisory_xact_lock({server.lock})".encode())
            connection = PostgresConnection(raw)
            if not connection.execute(
                "SELECT 1 FROM pg_namespace WHERE nspname = ?", (server.schema,)
            ):
                connection.execute(f'CREATE SCHEMA "{server.schema}"')
            if connection.execute("SELECT to_regclass(?)", (f"{server.schema}.head",))[0][0]:
                [(layout,)] = connection.execute("SELECT layout FROM head")
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
