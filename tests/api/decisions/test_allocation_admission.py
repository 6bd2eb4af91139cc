"""The staleness budget of rollouts, by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from atroposlib.api.common.records import GroupCount, GroupState
from atroposlib.api.decisions.allocation import UNBOUNDED, budget, unmet_minima
from tests.examples import examples


@pytest.mark.parametrize(
    ("max_staleness", "version", "base_version", "base", "allowed"),
    [
        (0, 0, 0, 0, 8),  # on policy: one batch at a time
        (1, 0, 0, 0, 16),
        (1, 2, 0, 0, 32),  # two batches trained, two more may be ahead
        (1, 5, 5, 40, 56),  # a restarted trainer starts from the trained batches
        (1, 3, 5, 40, 56),  # a version behind its base costs nothing
    ],
)
def test_each_policy_version_makes_room_for_one_batch(
    max_staleness, version, base_version, base, allowed
):
    assert budget(8, max_staleness, version, base_version, base) == allowed


def test_without_a_staleness_bound_every_admission_is_granted():
    assert budget(8, None, 0, 0, 0) == UNBOUNDED


def test_admitted_sequences_never_exceed_the_staleness_bound():
    accepted, trained, version = 0, 0, 0
    for _ in range(20):
        accepted += budget(8, 2, version, 0, 0) - accepted  # envs take all they may
        assert accepted - trained == 3 * 8  # one batch in training, two waiting
        trained, version = trained + 8, version + 1


def test_a_minimum_lacks_what_is_neither_queued_nor_buffered_nor_admitted():
    held = [
        GroupCount(state=GroupState.PENDING, env=0, n_seq=3, groups=1, n_bytes=9),
        GroupCount(state=GroupState.BUFFERED, env=0, n_seq=1, groups=2, n_bytes=9),
        GroupCount(state=GroupState.LEASED, env=1, n_seq=4, groups=1, n_bytes=9),
    ]
    assert unmet_minima({0: 8, 1: 2, 2: 1}, held, {0: 2, 2: 1, None: 5}) == {0: 1, 1: 2}


@examples(200)
@given(
    st.lists(st.integers(0, 6), min_size=2, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=40),
)
def test_no_order_of_requests_takes_the_room_of_a_minimum(shares, requests):
    needs = {env: need for env, need in enumerate(shares) if need}
    size = max(12, sum(shares))
    admitted: Counter[int | None] = Counter()
    for env, sequences in requests:
        unmet = unmet_minima(needs, [], admitted)
        others = sum(lacking for key, lacking in unmet.items() if key != env)
        room = budget(size, 0, 0, 0, 0) - others - admitted.total()
        admitted[env] += min(max(room, 0), sequences)
    # Whatever was granted, the environments with a minimum can still reach it in this batch.
    assert admitted.total() + sum(unmet_minima(needs, [], admitted).values()) <= size
