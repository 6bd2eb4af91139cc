"""Puts that wait for the writer together have the outcomes of puts one after the other."""

from __future__ import annotations

import threading
from contextlib import contextmanager

from hypothesis import given, strategies as st

from atroposlib.api.store import open_store
from atroposlib.errors import AtroposError
from tests.api.store.store_talk import group, in_order

BOUND = 40  # bytes of payloads
GROUPS = st.builds(
    lambda text, key: group(text, key=key),
    st.sampled_from(["a", "b", "cc" * 8]),
    st.sampled_from([None, "one", "two"]),
)
PUTS = st.lists(st.tuples(st.lists(GROUPS, max_size=3), st.sampled_from([0, 0, 0, 7])))


@contextmanager
def busy(store):
    """A writer that waits, with the operations that are submitted inside."""
    begun, over = threading.Event(), threading.Event()
    store._writer.submit(lambda _: (begun.set(), over.wait(300)))
    assert begun.wait(300)
    try:
        yield
    finally:
        over.set()


def outcome(reply):
    try:
        return reply.result(timeout=300)
    except AtroposError as error:
        return type(error), str(error)


@given(PUTS)
def test_waiting_puts_have_the_outcomes_of_puts_in_turn(puts):
    together, in_turn = (open_store("memory", max_bytes=BOUND) for _ in range(2))
    with busy(together):
        replies = [together.submit_put(*put, in_order) for put in puts]
    assert [outcome(one) for one in replies] == [
        outcome(in_turn.submit_put(*put, in_order)) for put in puts
    ]
    assert together.stats() == in_turn.stats()
    for store in (together, in_turn):
        store.close()


def test_waiting_puts_run_as_one(tmp_path):
    store = open_store("sqlite", tmp_path)
    statements = []

    def trace(_, sql, __):
        statements.append(sql.split()[0])
        return True

    with busy(store):
        replies = [
            store.submit_put([group(str(i), key=str(i))], 0, in_order) for i in range(9)
        ]
        store._database.raw.set_exec_trace(trace)
    assert [outcome(one)[0].gid for one in replies] == list(range(1, 10))
    assert statements.count("COMMIT") == 2 and statements.count("SAVEPOINT") == 0
    store.close()
