"""Rollouts that wait for their item: found by key, once, and not for a changed task."""

from __future__ import annotations

from atroposlib.envs.journal.journal_records import RolloutBegun, encode_item
from atroposlib.envs.journal.journal_state import state_after
from atroposlib.envs.journal.left_rollouts import LeftRollout, LeftRollouts, backlog_name


def test_rollouts_of_a_key_are_taken_oldest_first_and_by_name():
    left = LeftRollouts()
    for name in ("a", "b"):
        left.add(7, LeftRollout(name, "t", []))
    assert left.take(7, "b") is None
    assert left.take(7, "a") == LeftRollout("a", "t", [])
    assert left.name(7) == "b"
    assert left.name(8) is left.take(8, "a") is None


def test_rollouts_of_a_changed_task_are_removed():
    left = LeftRollouts()
    for name, task in (("a", "old"), ("b", "older"), ("c", "new")):
        left.add(7, LeftRollout(name, task, []))
    assert [rollout.name for rollout in left.changed(7, "new")] == ["a", "b"]
    assert left.name(7) == "c"


def test_a_requeued_item_is_a_repetition_once():
    left = LeftRollouts()
    state = state_after([RolloutBegun("a", "t", item=encode_item("question"))])
    work, without_item = left.take_over(state)
    assert (work.items, without_item) == ([("a", "question")], [])
    assert left.has_requeued
    assert [left.is_repetition("t"), left.is_repetition("t")] == [True, False]
    assert not left.has_requeued  # digests of items are not computed from here on
    left.take("t", "a")
    assert not left.has_waiting


def test_names_of_the_backlog_are_the_same_in_each_life_and_distinct():
    assert backlog_name("a", 0) == backlog_name("a", 0)
    assert len({backlog_name(parent, n) for parent in "ab" for n in range(3)}) == 6
