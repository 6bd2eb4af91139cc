"""Schema and tables of a run on PostgreSQL, its archive included."""

from __future__ import annotations

from atroposlib.api.store.postgres.connection import PostgresConnection, PostgresServer, Raw
from atroposlib.api.store.sql.rewriting import (
    OLD_LAYOUT,
    Convert,
    finish,
    json_groups,
    new_form,
    record_new_form,
)
from atroposlib.api.store.sql.schema import LAYOUT, POSTGRES, tables
from atroposlib.errors import ConfigError

# Emptied by the recovery from a crash, and empty on a standby: see PostgresDatabase.
_UNCRASHED = "CREATE UNLOGGED TABLE uncrashed (id TEXT NOT NULL)"
# A retired payload stays where it is, by a row of ``archived``; a statement counts what it retired.
# A change of ``archive`` beyond its bound frees the oldest that are not pinned.
_RETIRE = """
CREATE OR REPLACE FUNCTION retire() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE size BIGINT; BEGIN
    IF pg_trigger_depth() > 1 THEN RETURN old; END IF;  -- of free()
    IF EXISTS (SELECT 1 FROM archived WHERE gid = old.gid) THEN RETURN NULL; END IF;  -- a reset
    INSERT INTO archived SELECT gid, groups.n_bytes, digest FROM groups, archive
        WHERE gid = old.gid AND bound > 0 RETURNING n_bytes INTO size;
    IF size IS NULL THEN RETURN old; END IF;
    PERFORM set_config('atropos.retired', (retired() + size)::TEXT, true);
    RETURN NULL;
END $$;
"""
_ARCHIVE = """
CREATE TABLE archive (bound BIGINT NOT NULL, n_bytes BIGINT NOT NULL);
INSERT INTO archive VALUES (0, 0);
CREATE TABLE archived (
    gid BIGINT PRIMARY KEY, n_bytes BIGINT NOT NULL, digest BYTEA NOT NULL);
CREATE TABLE pinned (gid BIGINT PRIMARY KEY);
CREATE FUNCTION retired() RETURNS BIGINT LANGUAGE sql AS $$  -- bytes, by this statement
    SELECT COALESCE(NULLIF(current_setting('atropos.retired', true), ''), '0')::BIGINT $$;
@RETIRE@
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
""".replace("@RETIRE@", _RETIRE)


def make_tables(server: PostgresServer, convert: Convert | None = None) -> None:
    """Create schema and tables if missing; ``convert`` tables of the release before.

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
                if layout == OLD_LAYOUT and convert is not None:
                    _rewrite(connection, convert)
                elif layout != LAYOUT:
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


def _rewrite(connection: PostgresConnection, convert: Convert) -> None:
    """Convert the payloads and tables of the release before, in this transaction."""
    while groups := json_groups(connection, "payload"):
        for gid, _ in groups:
            [(body, digest)] = connection.execute(
                "SELECT body, digest FROM payload JOIN groups USING (gid) WHERE gid = ?",
                (gid,),
            )
            payload = new_form(connection, gid, bytes(body), bytes(digest), convert)
            if payload is not None:
                connection.execute("UPDATE payload SET body = ? WHERE gid = ?", (payload, gid))
                record_new_form(connection, gid, payload)
    connection.execute(
        "UPDATE archived SET n_bytes = groups.n_bytes, digest = groups.digest "
        "FROM groups WHERE groups.gid = archived.gid"
    )
    connection.execute(
        "UPDATE archive SET n_bytes = (SELECT COALESCE(SUM(n_bytes), 0) FROM archived)"
    )
    finish(connection, [], [_RETIRE])


def _require_session(server: PostgresServer, raw: Raw) -> None:
    """Refuse a pooler that gives each transaction another session.

    Settings and prepared statements belong to a session. A pooler shows in the process id
    that it gave to the client; the session of an idle client then serves another client.
    """
    backend = _backend(raw)
    if backend == raw.info.backend_pid:
        return
    with server.connect() as probe:
        with probe.transaction():
            _backend(probe)
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
