"""Conversion of the JSON payloads of a store of an earlier release. Up to layout 4 of the tables a
group was stored as it was posted, with its media type in a column.

Each transaction converts some groups and leaves a store that the earlier release can read as well,
since it had binary groups too. The last transaction drops the column and sets the layout. So a
crash in between loses nothing, and the next opening goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from atroposlib.api.common.records import HELD, GroupState, digest_of
from atroposlib.api.store.sql.schema import LAYOUT, Connection, for_all, keeps_payload

OLD_LAYOUT = 4
GROUPS_PER_TRANSACTION = 256
BYTES_PER_TRANSACTION = 32 * 2**20
# A digest of a group without payload, which no content can be compared with.
UNKNOWN_DIGEST = b""
UNREADABLE = b"unreadable"  # a digest that no payload has
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

# conversion from JSON to the stored form; ValueError: it is no group
Convert = Callable[[bytes], bytes]


def new_form(
    connection: Connection, gid: int, body: bytes, digest: bytes, convert: Convert
) -> bytes | None:
    """The payload in the stored form; None for a damaged group, which stays where it is."""
    if digest_of(body) != digest:
        connection.execute("UPDATE groups SET media = 'safetensors' WHERE gid = ?", (gid,))
        return None
    try:
        return convert(body)
    except ValueError:  # whole, and no group: it is set aside as dead when its turn comes
        connection.execute(
            "UPDATE groups SET media = 'safetensors', digest = ? WHERE gid = ?",
            (UNREADABLE, gid),
        )
        return None


def json_groups(connection: Connection, table: str) -> list[tuple[int, int]]:
    """(gid, n_bytes) of some groups of ``table`` whose payloads are JSON."""
    chosen, size = [], 0
    for gid, n_bytes in connection.execute(
        f"SELECT gid, groups.n_bytes FROM {table} JOIN groups USING (gid) "
        "WHERE groups.media = 'json' ORDER BY gid LIMIT ?",
        (GROUPS_PER_TRANSACTION,),
    ):
        chosen.append((gid, n_bytes))
        size += n_bytes
        if size > BYTES_PER_TRANSACTION:
            break
    return chosen


def record_new_form(connection: Connection, gid: int, payload: bytes) -> None:
    """Write size and digest of a converted payload to the row of its group and to the counts."""
    digest = digest_of(payload)
    [(env, n_seq, n_bytes, name)] = connection.execute(
        "SELECT env, n_seq, n_bytes, state FROM groups WHERE gid = ?", (gid,)
    )
    state, change = GroupState(name), len(payload) - n_bytes
    media = "safetensors+zstd" if payload[:4] == _ZSTD_MAGIC else "safetensors"
    connection.execute(
        "UPDATE groups SET n_bytes = ?, digest = ?, media = ? WHERE gid = ?",
        (len(payload), digest, media, gid),
    )
    if keeps_payload(state):
        connection.execute("UPDATE meta SET retained_bytes = retained_bytes + ?", (change,))
    if state in HELD:
        connection.execute(
            "UPDATE group_counts SET n_bytes = n_bytes + ? "
            "WHERE state = ? AND env = ? AND n_seq = ?",
            (change, name, env, n_seq),
        )


def finish(connection: Connection, before: Sequence[str], after: Sequence[str]) -> None:
    """Drop the media types and set the layout, in the last transaction.

    Args:
        before: statements that free the columns of triggers.
        after: statements that make these triggers without the columns.
    """
    # Digest of a group whose payload is freed: a late copy of its post counts as its repeat.
    connection.execute("UPDATE groups SET digest = ? WHERE media = 'json'", (UNKNOWN_DIGEST,))
    for statement in before:
        connection.execute(statement)
    connection.execute("ALTER TABLE groups DROP COLUMN media")
    connection.execute("ALTER TABLE archived DROP COLUMN media")
    for statement in after:
        connection.execute(statement)
    connection.execute("UPDATE meta SET layout = ?", (LAYOUT,))
    gids = [row[0] for row in connection.execute("SELECT gid FROM unconfirmed")]
    for_all(connection, _NEW_DIGESTS, gids)


_NEW_DIGESTS = (  # digests of replies in doubt, by which a repeated post is known
    "UPDATE unconfirmed SET digest = "
    "(SELECT digest FROM groups WHERE groups.gid = unconfirmed.gid) WHERE gid IN {}"
)
