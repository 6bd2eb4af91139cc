"""Rows for tests of the index."""

from __future__ import annotations

from dataclasses import fields

from atroposlib.api.archive.index import Index
from atroposlib.api.archive.records import BatchFact, NotesFact, RowFacts
from atroposlib.api.codec.row_facts import GroupFacts, RowFact
from atroposlib.api.store.sql.claim import BatchRow
from atroposlib.wire.notes import GroupNotes

UNKNOWN = dict.fromkeys(RowFact._fields)


def row(reward=0.0, n_tokens=4, **more):
    return RowFact(**UNKNOWN | {"reward": reward, "n_tokens": n_tokens} | more)


def group(gid, rows, env="math", item=None, state="pending", arrived=None, **more):
    facts = GroupFacts(item, None, tuple(rows))
    return RowFacts(
        gid, env, float(gid) if arrived is None else arrived, 5, state, facts, **more
    )


def batch(no, gids, state="acked", **more):
    facts = dict.fromkeys((field.name for field in fields(BatchRow)), 1)
    facts |= {"lease_until": 9.0, "ranks": "0,1", "n_seq": 2, "min_version": None}
    return BatchFact(BatchRow(**facts | {"no": no, "state": state} | more), gids)


def notes(gid, batch_no, counts, reasons=None, **arrays):
    """Notes of a group; ``arrays`` hold those of all its trained tokens, or of its rows."""
    found = GroupNotes.empty(0, counts)
    for name, values in arrays.items():
        getattr(found, name)[:] = values
    found.reasons[:] = reasons or found.reasons
    return NotesFact(gid, batch_no, found)


def index_of(*records):
    index = Index(None)
    index.write(records)
    return index
