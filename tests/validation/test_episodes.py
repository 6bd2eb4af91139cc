"""Decisions about repeated rollouts, and what is counted of a process."""

from __future__ import annotations

import os

from atroposlib.validation.episodes import differs, leftovers, same_scores
from atroposlib.validation.subject import Case, Played

CASE = Case("a", {})


def played(score, error=""):
    return Played(CASE, "reply", "gold", score, error)


def test_scores_differ_by_more_than_the_limit_or_by_their_absence():
    assert not differs(played(1.0), played(1.0), 0.0, "again")
    assert differs(played(1.0), played(0.9), 0.05, "again")
    assert differs(played(1.0), played(None), 0.05, "again")
    assert not differs(played(None, "failed"), played(None, "again failed"), 0.0, "again")


def test_another_process_has_the_same_tasks_and_scores():
    ours = [["a", 1.0, []], ["b", 0.5, []]]
    assert same_scores(ours, ours, 0.0) == []
    [found] = same_scores(ours, [["a", 1.0, []]], 0.0)
    assert found.task == "b" and "other tasks" in found.note


def test_an_open_file_is_counted():
    before = leftovers()
    opened = os.open(os.devnull, os.O_RDONLY)
    try:
        assert leftovers()["descriptors"] == before["descriptors"] + 1
    finally:
        os.close(opened)
