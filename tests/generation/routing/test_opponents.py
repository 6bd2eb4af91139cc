"""Opponents from earlier versions: the choice, its record, and the clients of the pool."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from atroposlib.generation.routing.opponents import (
    OpponentPool,
    OpponentRecord,
    choose_version,
    draw_for,
)


@pytest.mark.parametrize(
    ("rule", "draw", "version"),
    [
        ("age", 0.0, 2),
        ("age", 0.49, 4),
        ("age", 0.99, 8),
        # weights (1 - 0.9)^2 -> 0.05, (1 - 0.5)^2 = 0.25, (1 - 0)^2 = 1: of 1.3
        ("win_rate", 0.03, 2),
        ("win_rate", 0.05, 4),
        ("win_rate", 0.22, 4),
        ("win_rate", 0.24, 8),
    ],
)
def test_version_of_a_draw(rule, draw, version):
    scores = {2: 0.9, 8: 0.0}  # version 4 has not been played
    assert choose_version([8, 2, 4], rule, scores, draw) == version


@given(
    st.sets(st.integers(0, 50)),
    st.sampled_from(["age", "win_rate"]),
    st.dictionaries(st.integers(0, 50), st.floats(-2, 3)),
    st.floats(0, 1, exclude_max=True),
)
def test_choice_is_of_the_pool_and_of_an_empty_pool_none(pool, rule, scores, draw):
    version = choose_version([*pool], rule, scores, draw)
    assert version in pool if pool else version is None


def test_samples_of_a_task_meet_one_version_and_tasks_meet_all():
    versions = [
        choose_version([1, 2, 3], "age", {}, draw_for(0, f"{i}@0", "opponent"))
        for i in range(300)
    ]
    assert versions == [
        choose_version([1, 2, 3], "age", {}, draw_for(0, f"{i}@0", "opponent"))
        for i in range(300)
    ]
    assert all(70 < count < 130 for count in Counter(versions).values())


def test_record_has_mean_scores_and_goes_on_from_its_state():
    record = OpponentRecord()
    record.note({"opponent/version": 3.0, "won": 1.0}, ["opponent"], "won")
    record.note({"opponent/version": 3.0, "won": 0.0}, ["opponent"], "won")
    record.note({"opponent/fallback": 1.0, "won": 1.0}, ["opponent"], "won")
    record.note({"opponent/version": 5.0}, ["opponent"], "won")
    assert record.scores() == {3: 0.5}
    later = OpponentRecord()
    later.restore(record.state())
    assert later == record


async def test_pool_follows_the_servers_once_a_version_was_published(manage):
    manager, (fake,) = manage(1, server_type="vllm")
    pool = OpponentPool(manager.servers, [], "age", seed=0)
    assert await pool.choose("pool", "a@0", "opponent") is None
    fake.cards = [{"id": "fake"}, {"id": "fake@3"}]
    manager.announce_version(4)
    client = await pool.choose("pool", "a@0", "opponent")
    assert client is not None and client.config.model_name == "fake@3"
    assert await pool.choose(2, "a@0", "opponent") is None
    fake.cards = [{"id": "fake"}, {"id": "fake@4"}]
    assert (
        await pool.choose(3, "a@0", "opponent") is client
    )  # asked again with the next version
    manager.announce_version(5)
    assert await pool.choose(3, "a@0", "opponent") is None
    later = await pool.choose(4, "a@0", "opponent")
    assert later is not None and later.announced_version == 4
    await pool.close()
