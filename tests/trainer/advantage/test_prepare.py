"""Tests of the preparation of a batch: excluded rows and tokens, precedence of advantages."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from atroposlib.errors import ConfigError
from example_trainer.advantage.prepare import (
    minibatches,
    part_of,
    prepare_batch,
    prepare_parts,
)
from example_trainer.launch.plan import read_plan, trainer_settings
from tests.trainer.rows import row

CONFIGS = Path(__file__).resolve().parents[3] / "example_trainer/configs"


class Fixed:
    """A policy that gives every token the logprob -1."""

    def trained_logprobs(self, rows):
        return [[-1.0] * len(row.trained) for row in rows]


def group(*rewards, **fields):
    return [row([1, 2], [3 + i], reward=r, **fields) for i, r in enumerate(rewards)]


def test_each_trained_token_gets_the_advantage_of_its_row(config):
    rows = [row([1], [2, 3], reward=1.0), row([1], [4], reward=0.0)]
    assert prepare_batch(rows, config(), 0).advantages_R_T == [[1.0, 1.0], [-1.0]]


def test_a_row_that_only_counts_in_the_baseline_is_not_trained(config):
    rows = [*group(0.0), row([1], [2], reward=1.0, in_loss=False)]
    prepared = prepare_batch(rows, config(), 0)
    assert prepared.rows == rows[:1] and prepared.advantages_R_T == [[-1.0]]


def test_set_advantage_to_zero_keeps_the_row_in_the_baseline(config):
    rows = [row([1], [2], reward=1.0, zero_advantage=True), row([1], [3], reward=0.0)]
    assert prepare_batch(rows, config(), 0).advantages_R_T == [[0.0], [-1.0]]


def test_environment_advantages_take_precedence(config):
    rows = [
        row([1], [2, 3], reward=1.0, own_advantages=[0.25, 0.75]),
        row([1], [3], reward=0.0),
    ]
    assert prepare_batch(rows, config(), 0).advantages_R_T == [[0.25, 0.75], [-1.0]]


def test_the_dynamic_filter_drops_and_counts_groups_of_equal_rewards(config):
    rows = group(1.0, 1.0, group="even") + group(0.0, 1.0, group="odd")
    prepared = prepare_batch(rows, config(dynamic_filter=True), 0)
    assert [r.group for r in prepared.rows] == ["odd", "odd"]
    assert prepared.counts["rows_filtered_equal"] == 2
    assert len(prepare_batch(rows, config(), 0).rows) == 4


def test_rows_with_finish_reason_length_are_excluded_from_the_loss(config):
    rows = [*group(1.0, finish_reason="length"), *group(0.0, finish_reason="stop")]
    prepared = prepare_batch(rows, config(mask_truncated=True), 0)
    assert [r.finish_reason for r in prepared.rows] == ["stop"]
    assert prepared.advantages_R_T == [[-1.0]]  # the baseline still knows the other


def test_stale_tokens_are_excluded_from_the_loss(config):
    rows = [row([1], [2, 3], reward=1.0, versions=[0, 5]), *group(0.0)]
    prepared = prepare_batch(rows, config(max_token_staleness=2), version=6)
    assert [len(r.trained) for r in prepared.rows] == [1]
    assert prepared.counts["tokens_filtered_stale"] == 2


def test_kl_to_the_environment_reference_is_subtracted_from_the_reward(config):
    """k1 = log p - log ref = -1 - (-1.5) = 0.5 per token; the rest of the row counts.

    p is the trainer's: the sampler's own logprobs, far off, change nothing.
    """
    rows = [
        row([1], [2, 3], reward=1.0, ref_logprobs=[-1.5, -1.5], behaviour_logprobs=[-9.0] * 2),
        row([1], [3, 4], reward=0.0, ref_logprobs=[-1.0, -1.0]),
    ]
    cfg = config(kl_coef=0.1, kl_in="reward", kl_estimator="k1")
    prepared = prepare_batch(rows, cfg, 0, policy=Fixed())
    assert prepared.advantages_R_T[0] == pytest.approx([1.0 - 0.1, 1.0 - 0.05])
    assert prepared.advantages_R_T[1] == pytest.approx([-1.0, -1.0])


def test_a_kl_without_any_reference_is_refused(config):
    with pytest.raises(ConfigError, match="reference"):
        prepare_batch(group(1.0, 0.0), config(kl_coef=0.1), 0)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 8))
def test_minibatches_partition_the_rows(lengths, count):
    rows = [row([1], list(range(2, 2 + n))) for n in lengths]
    parts = minibatches(rows, count)
    assert sorted(i for part in parts for i in part) == list(range(len(rows)))
    assert len(parts) == min(count, len(rows)) and all(parts)


def test_batch_slice_keeps_rows_and_values_aligned(config):
    rows = group(1.0, 0.0, ref_logprobs=[-1.0, -1.0])
    cfg = config(kl_coef=0.1, kl_in="reward")
    prepared = prepare_batch(rows, cfg, 0, policy=Fixed())
    part = part_of(prepared, [1])
    assert part.rows == rows[1:] and part.advantages_R_T == prepared.advantages_R_T[1:]
    assert part.reference_R_T == part.proximal_R_T == [[-1.0]]
    assert math.isfinite(part.sums["kl_reference"])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_rounding_of_an_engine_is_no_kl_of_a_policy_that_is_its_reference(
    config, estimator
):
    noise = [0.06, -0.05, 0.3]
    sampled = row([1], [2, 3, 4], reward=1.0, behaviour_logprobs=[-1.0 + x for x in noise])
    rows = [sampled, *group(0.0)]
    same = [replace(one, ref_logprobs=[-1.0] * len(one.labels)) for one in rows]
    cfg = config(kl_coef=0.1, kl_in="reward", kl_estimator=estimator)
    prepared = prepare_batch(same, cfg, 0, policy=Fixed())
    assert prepared.sums["kl_reference"] == 0.0
    assert prepared.advantages_R_T == [[1.0] * 3, [-1.0]]


def test_on_policy_distillation_rewards_each_token_by_the_teachers_opinion_alone():
    """A_t = log p_teacher - log p, p of the trainer, with the settings of the recipe's file."""
    _, cfg = trainer_settings(read_plan([str(CONFIGS / "on_policy_distillation.yaml")], []))
    written = row(
        [1],
        [2, 3],
        reward=1.0,
        behaviour_logprobs=[-1.1, -0.9],
        ref_logprobs=[-0.5, -2.0],
    )
    rows = [written, *group(0.0, ref_logprobs=[1.0, -1.0])]
    prepared = prepare_batch(rows, cfg, 0, policy=Fixed())
    assert prepared.advantages_R_T[0] == pytest.approx([0.5, -1.0])


def test_each_environment_has_its_estimator_and_what_is_taken_over_the_batch_is_taken_over_it(
    config,
):
    """raw: the reward; lite_ppo: minus the group's mean, by the deviation of its rows: 1."""
    cfg = config(
        advantage="dr_grpo",
        algorithms={"a": {"advantage": "raw"}, "b": {"advantage": "lite_ppo"}},
    )
    rows = [
        replace(one, environment=name, group=str(name))
        for name, rewards in (("a", (9.0, 5.0)), (None, (4.0, 6.0)), ("b", (3.0, 1.0)))
        for one in group(*rewards)
    ]
    prepared = prepare_parts(rows, cfg, 0)
    assert [r.environment for r in prepared.rows] == ["a", "a", "b", "b", None, None]
    assert [row_T[0] for row_T in prepared.advantages_R_T] == [9.0, 5.0, 1.0, -1.0, -1.0, 1.0]


def test_the_kl_in_the_reward_is_that_of_one_environment(config):
    """A reference 0.5 nats below in b alone: k1 is 0.5 per token, and zeros stand in for a."""
    cfg = config(
        algorithms={
            "a": {"advantage": "raw"},
            "b": {"advantage": "raw", "kl_coef": 0.1, "kl_in": "reward", "kl_estimator": "k1"},
        }
    )
    rows = [replace(one, environment=name) for one, name in zip(group(1.0, 2.0), "ab")]
    rows[1] = replace(rows[1], ref_logprobs=[-1.5] * len(rows[1].labels))
    policy = Sampler()
    prepared = prepare_parts(rows, cfg, 0, policy=policy)
    tokens = len(rows[1].trained)
    assert prepared.reference_R_T == [[0.0] * len(rows[0].trained), [-1.5] * tokens]
    expected = [2.0 - 0.05 * left for left in range(tokens, 0, -1)]
    assert prepared.advantages_R_T[1] == pytest.approx(expected)
    assert prepared.advantages_R_T[0] == [1.0] * len(rows[0].trained)
    # The record divides sums by the tokens of the batch.
    mean_of_b = prepared.sums["kl_reference/b"] / prepared.tokens
    assert mean_of_b == pytest.approx(0.5) and "kl_reference/a" not in prepared.sums
    assert prepared.proximal_R_T is None  # a has none


class Sampler:
    """A policy of which every token has the logprob -1."""

    def trained_logprobs(self, rows):
        return [[-1.0] * len(row.trained) for row in rows]
