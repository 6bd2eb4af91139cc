"""Queries of the index of rollouts: changes of the ledger, and kept payloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atroposlib.api.common.records import BatchMember
from atroposlib.api.store.sql.claim import BatchRow, batches, members_of
from atroposlib.api.store.sql.schema import Connection, env_of, for_all


class Arrival(NamedTuple):
    """A group of the ledger."""

    env: int | None
    state: str
    batch_no: int | None
    arrived: float
    arrived_version: int | None
    n_bytes: int


@dataclass(frozen=True)
class ChangedBatches:
    """Batches after ``after``, and all that are not committed."""

    after: int

    def __call__(self, connection: Connection) -> list[BatchRow]:
        return batches(connection, "(state <> 'committed' OR no > ?)", self.after)


@dataclass(frozen=True)
class Members:
    """The groups of a batch that the ledger still has."""

    no: int

    def __call__(self, connection: Connection) -> tuple[BatchMember, ...]:
        return members_of(connection, self.no)


@dataclass(frozen=True)
class Arrivals:
    """State and arrival of the groups that the ledger has, by gid."""

    gids: Sequence[int]

    def __call__(self, connection: Connection) -> dict[int, Arrival]:
        sql = (
            "SELECT gid, env, state, batch_no, arrived, arrived_version, n_bytes "
            "FROM groups WHERE gid IN {}"
        )
        rows = for_all(connection, sql, self.gids)
        return {gid: Arrival(env_of(env), *rest) for gid, env, *rest in rows}


def kept_gids(connection: Connection, after: int, limit: int, archived: bool) -> list[int]:
    """Ids after ``after`` of the next groups whose payloads are kept, ascending."""
    gids: set[int] = set()
    for table in ("payload", "archived")[: 1 + archived]:
        sql = f"SELECT gid FROM {table} WHERE gid > ? ORDER BY gid LIMIT ?"
        gids.update(gid for (gid,) in connection.execute(sql, (after, limit)))
    return sorted(gids)[:limit]
