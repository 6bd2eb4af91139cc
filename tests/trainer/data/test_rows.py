from __future__ import annotations

import pytest

from atroposlib.errors import InvalidGroup
from atroposlib.wire import MASKED
from example_trainer.data.rows import (
    loss_weights,
    mean_env_metrics,
    to_rows,
    token_staleness,
    without_stale_tokens,
)
from tests.trainer.rows import masked_row, row, scored


def only_row(group, max_tokens=64):
    (found,) = to_rows([group], max_tokens).rows
    return found


def test_labels_logprobs_and_versions_are_shifted_together():
    group = scored([[1, 2, 3, 4, 5]], 2, [1.0])
    group.masks = [[-100, -100, 3, -100, 5]]
    group.inference_logprobs = [[1.0, 1.0, -0.3, 1.0, -0.5]]
    group.versions = [[-1, -1, 7, -1, 8]]
    found = only_row(group)
    assert found.trained == [1, 3]
    assert [found.labels[j] for j in found.trained] == [3, 5]
    assert [found.behaviour_logprobs[j] for j in found.trained] == [-0.3, -0.5]
    assert [found.versions[j] for j in found.trained] == [7, 8]


def test_labels_are_tokens_even_if_the_mask_holds_other_numbers():
    group = scored([[1, 2, 3]], 2, [1.0])
    group.masks = [[-100, -100, 1]]
    assert only_row(group).labels == [MASKED, 3]


def test_failed_rows_are_neither_in_the_loss_nor_in_the_baseline():
    group = scored([[1, 2]] * 4, 1, [1.0, 0.0, 9.0, 9.0])
    group.outcomes = ["ok", "truncated", "env_error", "timeout"]
    batch = to_rows([group], 64)
    assert [r.reward for r in batch.rows] == [1.0, 0.0]
    assert batch.counts["dropped_env_error"] == batch.counts["dropped_timeout"] == 1


def test_a_row_that_is_too_long_counts_in_the_baseline_only():
    batch = to_rows([scored([[1, 2], [1, 2, 3]], 1, [0.0, 1.0])], max_tokens=2)
    assert [r.in_loss for r in batch.rows] == [True, False]
    assert batch.counts["rows_too_long"] == 1


def test_group_without_logprobs_is_rejected_with_a_remedy():
    with pytest.raises(InvalidGroup, match="server_type: vllm"):
        to_rows([scored([[1, 2]], 1, [1.0], inference_logprobs=None)], 64)


def test_a_trained_token_without_a_logprob_is_refused():
    group = scored([[1, 2, 3]], 1, [1.0], inference_logprobs=[[1.0, -0.5, 1.0]])
    with pytest.raises(InvalidGroup, match=r"\[0\]\[2\]"):
        to_rows([group], 64)


@pytest.mark.parametrize("logprob", [0.5, 0.01, 2.0, 100.0, 0.0011])
def test_a_probability_above_one_is_refused(logprob):
    group = scored([[1, 2, 3]], 1, [1.0], inference_logprobs=[[1.0, -0.5, logprob]])
    with pytest.raises(InvalidGroup, match=r"\[0\]\[2\].*probability above 1"):
        to_rows([group], 64)


def test_rounding_of_a_sure_token_and_logprobs_of_masked_tokens_are_accepted():
    group = scored([[1, 2, 3]], 1, [1.0], inference_logprobs=[[0.5, 0.0009, 0.0]])
    assert only_row(group).trained == [0, 1]


def test_groups_are_identified_by_id_or_else_by_position():
    groups = [
        scored([[1, 2]], 1, [1.0], group_id=name) for name in ("a", "b", "a", None, None)
    ]
    keys = [r.group for r in to_rows(groups, 64).rows]
    assert keys[0] == keys[2] and len(set(keys)) == 4


@pytest.mark.parametrize(
    ("override", "params", "group_overrides", "expected"),
    [
        ({"temperature": 0.5}, {"temperature": 0.6}, {"temperature": 0.7}, 0.5),
        ({}, {"temperature": 0.6}, {"temperature": 0.7}, 0.6),
        ({}, None, {"temperature": 0.7}, 0.7),
        ({}, {}, None, 1.0),
        ({"temperature": 0.0}, None, None, 1.0),
    ],
)
def test_temperature_precedence(override, params, group_overrides, expected):
    group = scored([[1, 2]], 1, [1.0], overrides=[override])
    group.generation_params, group.group_overrides = params, group_overrides
    assert only_row(group).temperatures == [expected]


def test_advantages_of_the_producer_are_kept_if_they_fit_and_counted_if_not():
    group = scored([[1, 2, 3], [1, 2, 4]], 1, [1.0, 0.0])
    group.advantages = [[0.0, 0.25, 0.75], [0.5]]
    batch = to_rows([group], 64)
    assert [r.own_advantages for r in batch.rows] == [[0.25, 0.75], None]
    assert batch.counts["advantages_ignored"] == 1


def test_reference_and_teacher_are_shifted_like_labels():
    group = scored([[1, 2, 3]], 1, [1.0], ref_logprobs=[[0.0, -0.5, -0.7]])
    group.distill_token_ids = [[[], [2, 9], [3]]]
    group.distill_logprobs = [[[], [-0.1, -2.0], [-0.3]]]
    found = only_row(group)
    assert found.ref_logprobs == [-0.5, -0.7]
    assert found.teacher_ids == [[2, 9], [3]] and found.teacher_logprobs[1] == [-0.3]


def test_text_without_logprobs_becomes_rows_for_a_loss_without_a_sampler():
    group = scored([[1, 2]], 1, [1.0], inference_logprobs=None)
    (found,) = to_rows([group], 64, needs_sampler=False).rows
    assert found.trained == [0]


def test_stale_tokens_leave_the_loss_and_tokens_without_a_version_stay():
    mixed = masked_row([([1, 2], False), ([3, 4, 5], True)], versions=[-1, 2, 5, -1])
    fresh = without_stale_tokens(mixed, version=6, max_staleness=2)
    assert fresh.trained == [2, 3] and mixed.trained == [1, 2, 3]
    assert without_stale_tokens(mixed, version=6, max_staleness=4) is mixed


def test_loss_weights_make_tokens_or_sequences_equal():
    rows = [row([1], [2]), row([1], [2, 3, 4])]
    assert loss_weights(rows, "token") == ([1.0, 1.0], 4.0)
    assert loss_weights(rows, "sequence") == ([1.0, 1 / 3], 2.0)


def test_staleness_counts_trained_tokens_with_a_version():
    mixed = masked_row([([1, 2], False), ([3, 4, 5], True)], versions=[-1, 2, 3, -1])
    assert token_staleness([mixed], version=4) == [2, 1]


def test_metrics_of_environments_are_means_over_groups():
    groups = [
        scored([[1, 2]], 1, [1.0], metadata={"metrics": {"exact": 1.0, "length": 4}}),
        scored([[1, 2]], 1, [1.0], metadata={"metrics": {"exact": 0.5}}),
        scored([[1, 2]], 1, [1.0]),
    ]
    assert mean_env_metrics(groups) == {"env/exact": 0.75, "env/length": 4.0}


def test_versions_of_an_earlier_life_are_not_those_of_this_one():
    group = scored([[1, 2, 3, 4]], 2, [1.0])
    group.versions, group.incarnation = [[-1, -1, 30, 31]], 1
    (found,) = to_rows([group], 64, incarnation=2, starts=[0, 30]).rows
    assert [found.versions[j] for j in found.trained] == [30, 29]
    (same,) = to_rows([group], 64).rows
    assert [same.versions[j] for j in same.trained] == [30, 31]
