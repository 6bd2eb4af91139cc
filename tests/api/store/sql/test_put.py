"""Puts on every store: keys, the bound on bytes, buffers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from atroposlib.api.common.records import GroupState
from atroposlib.api.store.sql.ack import Commit
from atroposlib.api.store.sql.run import SaveRun
from atroposlib.errors import KeyConflict, RunChanged, StoreFull
from tests.api.store.store_talk import ack, claim, group, held, kinds, put, register


def test_results_keep_the_order_of_the_groups_and_gids_increase_with_time(store):
    stored = put(store, group("a"), group("b"), group("c"))
    assert [(one.gid, one.duplicate, one.state.value) for one in stored] == [
        (1, False, "pending"),
        (2, False, "pending"),
        (3, False, "pending"),
    ]


def test_a_duplicate_key_is_absorbed_and_returns_the_stored_group(store):
    [first] = put(store, group("x", key="k"))
    [second] = put(store, group("x", key="k"))
    assert (second.gid, second.duplicate, second.state) == (
        first.gid,
        True,
        GroupState.PENDING,
    )
    assert held(store) == 1


def test_a_key_twice_in_one_put_is_kept_once(store):
    first, second = put(store, group("x", key="k"), group("x", key="k"))
    assert second.duplicate and second.gid == first.gid and held(store) == 1


def test_the_same_content_without_a_key_is_another_group(store):
    put(store, group("x"), group("x"), group("x", key="k"))
    assert held(store) == 3


def test_a_key_is_absorbed_also_after_its_commit(store):
    put(store, group("x", 8, key="k"))
    batch = claim(store, register(store))
    assert ack(store, batch, commit=True)
    [again] = put(store, group("x", 8, key="k"))
    assert again.duplicate and again.state is GroupState.COMMITTED
    assert held(store) == 0


@pytest.mark.parametrize("known", [True, False])
def test_a_key_reused_with_other_content_rejects_the_whole_put(store, known):
    if known:
        put(store, group("x", key="k"))
        refused = [group("new"), group("y", key="k")]
    else:
        refused = [group("x", key="k"), group("y", key="k")]
    before = store.stats()
    with pytest.raises(KeyConflict, match="'k'"):
        put(store, *refused)
    assert store.stats() == before
    [after] = put(store, group("z"))
    assert after.gid == (2 if known else 1)


def test_a_put_validated_against_an_older_run_is_rejected(store):
    put(store, group("x", key="k"), revision=0)
    store.do(SaveRun(b"run", 0))
    for refused in (group("y"), group("x", key="k")):
        with pytest.raises(RunChanged):
            put(store, refused, revision=0)
    put(store, group("y"), revision=1)
    assert held(store) == 2


def test_an_empty_put_changes_no_state(store):
    assert put(store) == []


def test_concurrent_puts_are_all_stored_with_distinct_gids(store):
    with ThreadPoolExecutor(8) as pool:
        stored = list(
            pool.map(lambda i: put(store, group(f"{i}", key=f"{i}"), revision=0), range(40))
        )
    gids = [one.gid for [one] in stored]
    assert len(set(gids)) == 40
    assert store.read(gids) == [f"{i}".encode() for i in range(40)]


def test_payloads_count_against_the_bound_until_their_commit(reopen):
    store = reopen(max_bytes=10)
    put(store, group("12345678", 8, key="k"))
    generation = register(store)
    with pytest.raises(StoreFull, match="8 of at most 10"):
        put(store, group("abc"))
    put(store, group("12345678", 8, key="k"), group("12345678", 8, key="k"))
    put(store, group("ab"))
    batch = claim(store, generation)
    ack(store, batch)
    assert store.stats().retained_bytes == 10
    with pytest.raises(StoreFull):
        put(store, group("a"))
    store.do(Commit(batch.no, generation))
    assert store.stats().retained_bytes == 2
    put(store, group("12345678"))


def test_a_put_beyond_the_bound_stores_no_groups(reopen):
    store = reopen(max_bytes=10)
    with pytest.raises(StoreFull):
        put(store, group("12345"), group("123456"))
    assert store.stats().group_counts == () and store.stats().retained_bytes == 0
    assert put(store, group("12345"), group("12345"))[0].gid == 1


def test_one_bound_holds_for_concurrent_puts(reopen):
    store = reopen(max_bytes=100)

    def post(i):
        try:
            return put(store, group(f"{i:010}"), revision=0)
        except StoreFull:
            return None

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(post, range(40)))
    assert sum(outcome is not None for outcome in outcomes) == 10


def test_a_buffered_group_waits_until_the_buffer_of_its_env_is_complete(store):
    [one] = put(store, group("a", 2, env=1, expected=4))
    [other] = put(store, group("b", 2, env=2, expected=4))
    assert (one.state, one.buffered, other.buffered) == (GroupState.BUFFERED, 2, 2)
    assert held(store) == 0
    [last] = put(store, group("c", 2, env=1, expected=4))
    assert (last.state, last.buffered) == (GroupState.PENDING, 0)
    assert kinds(store) == {("pending", 1, 2): (2, 2), ("buffered", 2, 2): (1, 1)}


def test_a_completed_group_keeps_its_place_in_the_queue(store):
    put(store, group("a", 4, env=1, expected=8))
    put(store, group("b", 8))
    put(store, group("c", 4, env=1, expected=8))
    assert claim(store, register(store)).gids == (1, 3)


def test_groups_of_one_put_complete_each_other(store):
    stored = put(store, *(group(f"{i}", 2, env=0, expected=4) for i in range(5)))
    assert [one.state.value for one in stored] == ["pending"] * 4 + ["buffered"]
    assert {one.buffered for one in stored} == {2}


def test_a_duplicate_of_a_buffered_group_is_reported_and_adds_no_sequences(store):
    put(store, group("a", 2, env=0, expected=4, key="k"))
    [again] = put(store, group("a", 2, env=0, expected=4, key="k"))
    assert (again.duplicate, again.state, again.buffered) == (True, GroupState.BUFFERED, 2)


def test_the_completer_is_called_until_no_buffer_is_complete(store):
    put(store, *(group(f"{i}", 1, env=0, expected=9) for i in range(4)))
    asked = []

    def pairs(buffer, expected):
        asked.append((list(buffer), expected))
        return [gid for gid, _ in buffer][:2] if len(buffer) >= 2 else []

    [last] = put(store, group("e", 1, env=0, expected=3), complete=pairs)
    assert [expected for _, expected in asked] == [3, 3, 3]
    assert [len(buffer) for buffer, _ in asked] == [3, 3, 1]
    assert (last.state, last.buffered) == (GroupState.BUFFERED, 1)


def test_the_cost_of_a_buffer_that_never_completes_stays_bounded(store):
    shown = []

    def never(buffer, expected):
        shown.append(list(buffer))
        return []

    for i in range(30):
        put(store, group(f"{i}", 2 if i % 2 else 3, env=0, expected=7), complete=never)
    assert max(len(buffer) for buffer in shown) == 7 // 2 + 7 // 3
    assert shown[-1] == [(1, 3), (2, 2), (3, 3), (4, 2), (6, 2)]
