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

from atroposlib.api.store.sql.schema import Row
from atroposlib.errors import ConfigError, StoreError, StoreFull

T = TypeVar("T")
logger = logging.getLogger(__name__)

MIN_SERVER_VERSION = 150000
RETRY_S = 0.2  # between two attempts to reach the server
WAIT_LOG_S = 10.0  # between two log lines about a server that is awaited at the start
# silence of a server that a reader waits for; then it counts as unreachable
READ_SILENCE_S = 15.0
WRITE_SILENCE_S = 100.0  # longer than the timeouts by which a live server ends a statement
# silence before a probe: a frozen server answers no second connection either
PROBE_AFTER_S = 10.0
CLOSING_SILENCE_S = 5.0  # while the store closes
PROBE_INTERVAL_S = 1.0  # between attempts after the timeout: each may take a connect timeout
# The server disconnects a frozen replica that holds the lock of the run after 10 s; a live replica
# computes for 2.8 s at most between two statements (a batch of 50,000 rows is chosen). The lock
# timeout of the waiting replicas is longer than that.
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
PROBE_OPTIONS: dict[str, Any] = {"connect_timeout": 5, "application_name": "atropos-probe"}
# Parts of libpq's messages about a connection that waiting cannot make possible.
PERMANENT = ("authentication failed", "does not exist", "no pg_hba.conf", "no password")
# Exceptions of psycopg, and of text that no database can hold.
FAULTS = (psycopg.Error, UnicodeEncodeError)


def postgres_fault(cause: Exception) -> StoreError:
    if isinstance(cause, StoreError):
        return cause
    kind = StoreFull if isinstance(cause, psycopg.errors.DiskFull) else StoreError
    message = str(cause).strip().split("\n")[0]  # further lines may quote values
    error = kind(f"PostgreSQL: {message or type(cause).__name__}")
    error.__cause__ = cause
    return error


class Raw(psycopg.Connection[Row]):
    """Connection that is closed when the server sends nothing for ``silence_s``, or for
    ``PROBE_AFTER_S`` while it answers no second connection either.

    A frozen server acknowledges TCP packets, so no timeout of the kernel ends the wait, and
    ``statement_timeout`` is the frozen server's own.
    """

    silence_s = WRITE_SILENCE_S
    server: PostgresServer | None = None

    def wait(self, gen: PQGen[T], *args: Any, **settings: Any) -> T:
        return super().wait(self._with_bound(gen), *args, **settings)

    def _with_bound(self, gen: PQGen[T]) -> PQGen[T]:
        heard = probed = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now = time.monotonic()
                if ready:
                    heard = probed = now
                elif now > heard + self._bound_s():
                    raise self._loss(heard)
                elif self.server is not None and now > probed + PROBE_AFTER_S:
                    if not self.server.answers():
                        raise self._loss(heard)
                    probed = time.monotonic()
                wanted = gen.send(ready)
        except StopIteration as done:
            result: T = done.value
            return result

    def _bound_s(self) -> float:
        closing = self.server is not None and self.server.stopped.is_set()
        return min(self.silence_s, CLOSING_SILENCE_S) if closing else self.silence_s

    def _loss(self, heard: float) -> psycopg.OperationalError:
        """Close; the error of a server that is silent since ``heard`` (s, monotonic)."""
        self.close()
        silent_s = time.monotonic() - heard
        error = psycopg.OperationalError(f"the server sent nothing for {silent_s:.0f} s")
        if self.server is not None:
            self.server.record_outage(heard, error)
        return error


class PostgresConnection:
    """See :class:`atroposlib.api.store.sql.schema.Connection`."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        with self.raw.cursor(binary=True) as cursor:  # half the bytes of hexadecimal payloads
            cursor.execute(_postgres_sql(sql), [_outward(value) for value in values])
            if cursor.description is None:
                return []
            return [_inward(row) for row in cursor.fetchall()]

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        with self.raw.cursor() as cursor:
            cursor.executemany(
                _postgres_sql(sql), [[_outward(v) for v in row] for row in rows]
            )


@lru_cache(maxsize=1024)
def _postgres_sql(sql: str) -> bytes:
    return sql.replace("%", "%%").replace("?", "%s").encode()


def _outward(value: Any) -> Any:
    """Escape NUL, which a key of a client may hold and text of PostgreSQL may not."""
    if isinstance(value, str) and ("\0" in value or "\\" in value):
        return value.replace("\\", "\\\\").replace("\0", "\\0")
    return value


def _inward(row: Row) -> Row:
    if any(isinstance(value, str) and "\\" in value for value in row):
        return tuple(_plain_text(v) if isinstance(v, str) else v for v in row)
    return row


def _plain_text(text: str) -> str:
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
        self.stopped = threading.Event()  # set while the store closes
        self._outage: _Outage | None = None
        self._ahead_s: float | None = None  # clock of the server minus the monotonic clock

    def stop_retrying(self) -> None:
        """End all retries, since the store closes."""
        self.stopped.set()

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
            raw.silence_s, raw.server = silence_s, self
            # Numbers are sent as bigint, so a prepared statement fits all values.
            raw.adapters.register_dumper(int, Int8Dumper)
            raw.adapters.register_dumper(int, Int8BinaryDumper)
            self.record_time(_require_durable(raw))
            raw.execute(SETTINGS.format(schema=self.schema).encode())
            undo.pop_all()
        return raw

    def answers(self) -> bool:
        """Whether the server answers a new connection, be it with a refusal."""
        options = {**CONNECT_OPTIONS, **conninfo_to_dict(self._address), **PROBE_OPTIONS}
        try:
            psycopg.connect(**options).close()
        except psycopg.OperationalError as cause:
            return not isinstance(cause, psycopg.errors.ConnectionTimeout)
        return True

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
                now, permanent = (
                    time.monotonic(),
                    any(part in str(cause) for part in PERMANENT),
                )
                if not is_away(cause) or permanent or now >= began + timeout_s:
                    raise postgres_fault(cause) from cause
                if now >= logged + WAIT_LOG_S:
                    logged = now
                    logger.warning(f"waiting at most {timeout_s:g} s: {postgres_fault(cause)}")
            self.stopped.wait(min(1.0, timeout_s))

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
                if self._timed_out(cause) or self.stopped.wait(RETRY_S):
                    raise
            else:
                self._outage = None
                return result

    def _timed_out(self, cause: Exception) -> bool:
        now = time.monotonic()
        return now >= self.record_outage(now, cause) + self._reconnect_timeout_s

    def record_outage(self, since: float, cause: Exception) -> float:
        """Record a failure of an outage that lasts at least since then; returns its beginning."""
        now, known = time.monotonic(), self._outage
        same = known is not None and now < known.latest + self._reconnect_timeout_s
        first = known.first if known and same else since  # no call since: a new outage
        self._outage = _Outage(first, now, cause)
        return first

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
