"""The staleness budget of rollouts, by hand."""

from __future__ import annotations

import pytest

from atroposlib.api.decisions.allocation import UNBOUNDED, budget


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
