"""Recorded batches: composition, order, and changed copies of groups."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from atroposlib.errors import ConfigError
from atroposlib.travel.recorded_batches import (
    Changes,
    RecordedRun,
    changed_group,
    in_order,
    shifted_versions,
)
from atroposlib.wire import MASKED_VERSION
from atroposlib.wire.columns import from_group
from tests.examples import examples
from tests.travel.recorded import planted_run, sums_group


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return planted_run(tmp_path_factory.mktemp("batches") / "run") / "queue"


def test_batches_are_those_that_the_trainer_acked(run):
    with RecordedRun(run) as recorded:
        assert [batch.step for batch in recorded.batches] == [1, 2, 3, 4]
        assert [batch.n_rows for batch in recorded.batches] == [8] * 4
        assert recorded.envs == ["sums_0"]
        groups = recorded.groups(recorded.batches[2], Changes())
    assert [group.group_id for group in groups] == ["sum30@0", "sum31@0"]
    assert groups[0].scores == [0.0, 1.0, 0.0, 1.0]


def test_a_step_behind_the_last_has_no_batch(run):
    with RecordedRun(run, first_step=4) as recorded:
        assert [batch.step for batch in recorded.batches] == [4]
    with pytest.raises(ConfigError, match="4 was the last"):
        RecordedRun(run, first_step=5)


def test_a_freed_payload_is_named_with_a_remedy(run, monkeypatch):
    with RecordedRun(run) as recorded:
        monkeypatch.setattr(
            "atroposlib.travel.recorded_batches.stored_payloads", lambda *_: {}
        )
        with pytest.raises(ConfigError, match="2 of 2 groups of step 1.*--from-step"):
            recorded.groups(recorded.batches[0], Changes())


def group_columns(**more):
    group = sums_group(1, ["2", "3"], [1.0, 0.0])
    for name, value in more.items():
        setattr(group, name, value)
    return from_group(group)


def test_a_copy_has_the_content_and_no_identity_of_its_first_run():
    group = changed_group(group_columns(env_id=3, incarnation=2), 9, Changes())
    assert (group.env_id, group.incarnation, group.idempotency_key) == (None, None, None)
    assert group.tokens == sums_group(1, ["2", "3"], [1.0, 0.0]).tokens
    assert group.scores == [1.0, 0.0]


def test_new_rewards_replace_scores_and_leave_out_sent_advantages():
    columns = group_columns(advantages=[[0.5] * 5, [-0.5] * 5])
    group = changed_group(columns, 9, Changes({(9, 0): -1.0, (9, 1): 2.0}))
    assert group.scores == [-1.0, 2.0] and group.advantages is None
    assert changed_group(columns, 9, Changes()).advantages is not None


@pytest.mark.parametrize("scores", [{}, {(9, 0): 1.0, (9, 1): None}])
def test_a_row_without_a_new_reward_is_refused_or_keeps_the_recorded_reward(scores):
    with pytest.raises(ConfigError, match="group 9.*--keep-old"):
        changed_group(group_columns(), 9, Changes(scores))
    kept = changed_group(group_columns(), 9, Changes(scores, keep_old=True))
    assert kept.scores == [1.0, 0.0]


@examples(40)
@given(
    st.lists(st.integers(0, 20), min_size=2, max_size=2),
    st.integers(0, 20),
)
def test_shifted_versions_stay_at_least_0_and_masked_tokens_stay_masked(newest, shift):
    versions = [[MASKED_VERSION] * 3 + [version] * 2 for version in newest]
    shifted = shifted_versions(group_columns(versions=versions), shift).reshape(2, 5)
    assert (shifted[:, :3] == MASKED_VERSION).all()
    assert shifted[:, 3:].tolist() == [[max(0, version - shift)] * 2 for version in newest]


@examples(40)
@given(st.lists(st.integers(), max_size=8), st.integers(0, 5))
def test_shuffled_batches_are_the_same_batches_and_the_same_with_a_seed(batches, seed):
    shuffled = list(in_order(batches, "shuffled", seed))
    assert sorted(shuffled) == sorted(batches)
    assert shuffled == list(in_order(batches, "shuffled", seed))
    assert list(in_order(batches, "recorded", seed)) == batches
