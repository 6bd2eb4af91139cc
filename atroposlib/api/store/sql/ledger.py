"""SQL of the index of rollouts: what changed in the ledger, and which payloads are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from atroposlib.api.store.sql.claim import BatchRow, batches
from atroposlib.api.store.sql.schema import Connection, env_of, for_all


class Arrival(NamedTuple):
    """A group of the ledger."""

    env: int | None
    state: str
    batch_no: int | None
    arrived: float
    arrived_version: int | None
    n_bytes: int


def changed(connection: Connection, after: int) -> list[BatchRow]:
    return batches(connection, "(state <> 'committed' OR no > ?)", after)


def arrivals(connection: Connection, gids: Sequence[int]) -> dict[int, Arrival]:
    sql = (
        "SELECT gid, env, state, batch_no, arrived, arrived_version, n_bytes "
        "FROM groups WHERE gid IN {}"
    )
    rows = for_all(connection, sql, gids)
    return {gid: Arrival(env_of(env), *rest) for gid, env, *rest in rows}


def kept(connection: Connection, after: int, limit: int, archived: bool) -> list[int]:
    found: set[int] = set()
    for table in ("payload", "archived")[: 1 + archived]:
        sql = f"SELECT gid FROM {table} WHERE gid > ? ORDER BY gid LIMIT ?"
        found.update(gid for (gid,) in connection.execute(sql, (after, limit)))
    return sorted(found)[:limit]
