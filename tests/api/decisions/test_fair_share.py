"""Weights steer trained tokens: by hand, and over many batches of random environments."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, strategies as st

from atroposlib.api.common.records import GroupSummary
from atroposlib.api.decisions import fair_share
from atroposlib.api.decisions.batching import choose
from atroposlib.api.decisions.fair_share import EnvBalance, FairShareState
from atroposlib.errors import StoreError
from tests.examples import examples


def queue_of(*rows):
    return [
        GroupSummary(gid, env, 1, tokens) for gid, (env, tokens) in enumerate(rows, start=1)
    ]


def gids(groups):
    return [group.gid for group in groups]


def deficits(state):
    return {entry.env: entry.deficit for entry in state.envs}


def test_an_env_with_twice_the_weight_is_served_twice_as_often():
    queue = queue_of((0, 10), (0, 10), (1, 10), (1, 10), (1, 10), (1, 10))
    # rounds: env 0 at 10, 20; env 1 at 5, 10, 15, 20; ties go to the older group
    assert gids(fair_share.order(queue, {0: 1.0, 1: 2.0}, FairShareState())) == [
        3,
        1,
        4,
        5,
        2,
        6,
    ]


def test_groups_of_one_env_keep_their_order():
    queue = queue_of((0, 90), (0, 1), (0, 50))
    assert gids(fair_share.order(queue, {}, FairShareState((EnvBalance(0, -100.0),)))) == [
        1,
        2,
        3,
    ]


def test_the_env_with_the_largest_deficit_is_served_first():
    queue = queue_of((0, 10), (1, 10))
    assert gids(fair_share.order(queue, {}, FairShareState((EnvBalance(1, 5.0),)))) == [2, 1]


def test_a_batch_is_charged_to_the_envs_of_its_groups():
    queue = queue_of((0, 30), (0, 30), (1, 30), (None, 30))
    state = fair_share.after(FairShareState(), queue, queue[:1], {})
    assert deficits(state) == {None: 10.0, 0: -20.0, 1: 10.0}
    assert [(entry.env, entry.trained) for entry in state.envs] == [(None, 0), (0, 30), (1, 0)]


def test_groups_without_trained_tokens_are_charged_their_rows():
    queue = [GroupSummary(1, 0, 4, 0), GroupSummary(2, 1, 4, 0), GroupSummary(3, 0, 4, 0)]
    state = fair_share.after(FairShareState(), queue, queue[:1], {})
    assert deficits(state) == {0: -2.0, 1: 2.0}


def test_an_absent_env_accumulates_no_credit():
    rich = FairShareState((EnvBalance(0, -500.0), EnvBalance(1, 500.0)))
    queue = queue_of((0, 10), (0, 10))
    assert deficits(fair_share.after(rich, queue, queue[:1], {}))[1] == 0.0


def test_the_debt_of_an_absent_env_decreases():
    state = FairShareState((EnvBalance(0, 8.0), EnvBalance(1, -8.0)))
    queue = queue_of(*[(0, 10)] * 4)
    state = fair_share.after(state, queue, queue[:1], {})
    assert deficits(state)[1] == -3.0  # half of 10 would have been its own
    state = fair_share.after(state, queue[1:], queue[1:2], {})
    assert deficits(state)[1] == 0.0


def test_a_new_env_starts_level_with_the_waiting_envs():
    state = FairShareState()
    for _ in range(50):  # env 1 comes and goes; the two others always wait
        queue = queue_of((0, 10), (0, 10), (2, 10), (2, 10), (1, 10))
        state = fair_share.after(state, queue, [queue[0], queue[4]], {})
        state = fair_share.after(state, queue[:4], [queue[2]], {})
    waiting = [entry.deficit for entry in state.envs if entry.env != 1]
    assert sum(waiting) == pytest.approx(0.0)


def test_debt_beyond_the_bound_is_partly_forgotten():
    state = FairShareState()
    queue = queue_of((0, 10), (0, 10), (1, 10))
    for _ in range(100):  # only env 0 ever fits
        state = fair_share.after(state, queue, queue[:1], {})
    assert max(abs(deficit) for deficit in deficits(state).values()) == 40.0


def test_the_lightest_env_is_served_when_it_is_alone():
    queue = queue_of((0, 10), (0, 10))
    selection = choose(queue, batch_size=2, weights={0: 0.0, 1: 100.0})
    assert selection.gids == (1, 2)


def test_an_env_of_weight_zero_still_gets_a_little():
    left, doc, trained = [GroupSummary(1, 0, 1, 10)], None, Counter()
    for batch in range(250):
        left = left + [GroupSummary(10 * batch + i, 1, 1, 10) for i in (2, 3)]
        selection = choose(left, doc, batch_size=1, weights={0: 0.0, 1: 1.0})
        trained.update(group.env for group in left if group.gid in selection.gids)
        left = [group for group in left if group.gid not in selection.gids]
        doc = selection.fair_share
    assert trained == {0: 1, 1: 249}


def test_the_fair_share_document_round_trips():
    state = FairShareState((EnvBalance(None, 1.5, 7), EnvBalance(3, -1.5, 9)))
    assert fair_share.decode(fair_share.encode(state)) == state
    assert fair_share.decode(None) == FairShareState()
    assert fair_share.realised_shares(state) == {None: 7 / 16, 3: 9 / 16}


def test_a_damaged_document_is_rejected_and_does_not_reset_the_shares():
    with pytest.raises(StoreError, match="mix of environments"):
        fair_share.decode(b"{")


def test_requested_shares_sum_to_one_and_light_envs_get_the_minimum():
    shares = fair_share.target_shares({0: 0.0, 1: 0.99})
    assert shares == {0: pytest.approx(0.01), 1: pytest.approx(0.99)}
    assert (
        fair_share.realised_shares(FairShareState()) == {}
        and fair_share.target_shares({}) == {}
    )


class Backlog:
    """Environments that always have plenty queued, each with its sizes and lengths."""

    def __init__(self, envs, random, depth):
        self.envs, self.random = envs, random
        self.queue: list[GroupSummary] = []
        self.made = self.largest = 0
        for env in envs:
            for _ in range(depth):
                self.post(env)

    def post(self, env):
        sizes, length = self.envs[env]
        self.made += 1
        n_seq = self.random.choice(sizes)
        tokens = sum(self.random.randint(1, 2 * length) for _ in range(n_seq))
        self.largest = max(self.largest, tokens)
        self.queue.append(GroupSummary(self.made, env, n_seq, tokens))

    def train(self, gids):
        taken = set(gids)
        for group in [group for group in self.queue if group.gid in taken]:
            self.post(group.env)
        self.queue = [group for group in self.queue if group.gid not in taken]


kinds = st.tuples(
    st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=2), st.integers(5, 500)
)


@pytest.mark.slow
@given(
    envs=st.lists(kinds, min_size=2, max_size=6),
    raw=st.lists(st.sampled_from([0.3, 0.5, 1.0, 2.0, 4.0]), min_size=6, max_size=6),
    seed=st.integers(0, 2**32),
)
@examples(25)
def test_realised_shares_come_within_two_points_of_the_weights(envs, raw, seed):
    weights = dict(enumerate(raw[: len(envs)]))
    backlog = Backlog(dict(enumerate(envs)), Random(seed), depth=40)
    doc = None
    for _ in range(250):
        selection = choose(backlog.queue, doc, batch_size=32, weights=weights)
        doc = selection.fair_share
        backlog.train(selection.gids)
    trained = {entry.env: entry.trained for entry in fair_share.decode(doc).envs}
    total = sum(trained.values())
    for env, share in fair_share.target_shares(
        weights
    ).items():  # a group is trained on whole or not yet
        assert abs(trained[env] - share * total) <= 0.02 * total + backlog.largest


def test_ordering_visits_each_group_once(monkeypatch):
    looks = 0
    price = GroupSummary.cost.fget

    def counted(group):
        nonlocal looks
        looks += 1
        return price(group)

    monkeypatch.setattr(GroupSummary, "cost", property(counted))
    queue = [GroupSummary(gid, gid % 9, 4, 100) for gid in range(4000)]
    assert len(fair_share.order(queue, {}, FairShareState())) == 4000
    assert looks == 4000


def test_environments_that_the_run_forgot_are_forgotten_the_oldest_first():
    gone = tuple(EnvBalance(env, -1.0, 5) for env in range(fair_share.KEPT_GONE + 2))
    state = fair_share.after(
        FairShareState((EnvBalance(None, 0.0, 5), *gone, EnvBalance(900, 0.0, 5))),
        queue := queue_of((950, 10)),
        queue,
        {0: 1.0, 950: 1.0},
    )
    assert [one.env for one in state.envs] == [None, 0, *range(3, len(gone)), 900, 950]
