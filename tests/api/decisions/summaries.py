"""Queues of group summaries, and strategies that draw them."""

from __future__ import annotations

from hypothesis import strategies as st

from atroposlib.api.common.records import GroupSummary
from atroposlib.api.decisions.batching import choose
from tests.examples import examples

SOME = examples(300)


def queue_of(*rows):
    return [GroupSummary(gid, *row) for gid, row in enumerate(rows, start=1)]


def pick(queue, batch_size, needs=None, **more):
    return choose(queue, batch_size=batch_size, needs=needs, **more)


groups = st.lists(
    st.tuples(
        st.sampled_from([None, 0, 1, 2]),
        st.sampled_from([1, 2, 3, 4, 6, 12]),
        st.integers(0, 9),
    ),
    max_size=9,
).map(lambda rows: queue_of(*rows))
needs = st.dictionaries(st.sampled_from([0, 1, 2]), st.integers(0, 8), max_size=3)
weights = st.dictionaries(st.sampled_from([None, 0, 1, 2]), st.floats(0, 10), max_size=4)
