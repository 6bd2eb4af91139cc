"""Rows for tests of the index."""

from __future__ import annotations

from atroposlib.api.archive.index import Index
from atroposlib.api.archive.records import RowFacts
from atroposlib.api.codec.row_facts import GroupFacts, RowFact

UNKNOWN = dict.fromkeys(RowFact._fields)


def row(reward=0.0, n_tokens=4, **more):
    return RowFact(**UNKNOWN | {"reward": reward, "n_tokens": n_tokens} | more)


def group(gid, rows, env="math", item=None, state="pending", arrived=None, **more):
    facts = GroupFacts(item, None, tuple(rows))
    return RowFacts(
        gid, env, float(gid) if arrived is None else arrived, 5, state, facts, **more
    )


def index_of(*records):
    index = Index(None)
    index.write(records)
    return index
