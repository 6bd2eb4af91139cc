"""Rows of a session: every sampled token trained once, values by hand and by Hypothesis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, strategies as st

from atroposlib.generation.proxy.sample_tree import Rewards, SampleTree, discounted_returns
from atroposlib.generation.sampling.generation import Generation
from atroposlib.wire.routing import RoutedExperts, experts_entry


def sample(prompt: list[int], tokens: list[int], version: int = 0) -> Generation:
    return Generation(
        prompt_ids=prompt,
        tokens=tokens,
        logprobs=[-t / 8 for t in tokens],
        versions=[version] * len(tokens),
        finish_reason="stop",
    )


def samples_of(*outputs: Generation) -> SampleTree:
    samples = SampleTree()
    for i, output in enumerate(outputs):
        samples.add(f"c{i}", 0, output)
    return samples


def test_turns_that_extend_each_other_form_one_row():
    samples = samples_of(sample([1, 2], [3, 4], 5), sample([1, 2, 3, 4, 6], [7], 8))
    (row,) = samples.rows()
    assert row.tokens == [1, 2, 3, 4, 6, 7]
    assert row.masked_tokens == [-100, -100, 3, 4, -100, 7]
    assert row.logprobs == [1.0, 1.0, -3 / 8, -4 / 8, 1.0, -7 / 8]
    assert row.versions == [-1, -1, 5, 5, -1, 8]
    assert [(turn.completion_id, turn.start, turn.end) for turn in row.turns] == [
        ("c0", 2, 4),
        ("c1", 5, 6),
    ]


def test_equal_tokens_of_different_images_are_different_rows():
    first = replace(sample([1, 2], [3]), images=["a"])
    samples = samples_of(
        first,
        replace(sample([1, 2, 3, 4], [5]), images=["b"]),
        replace(sample([1, 2, 3, 6], [7]), images=["a", "b"]),
    )
    rows = samples.rows()
    assert [row.images for row in rows] == [["b"], ["a", "b"]]
    assert [len(row.turns) for row in rows] == [1, 2]


def test_a_turn_shared_by_two_branches_is_trained_in_the_first_only():
    samples = samples_of(
        sample([1], [2]), sample([1, 2, 3], [4]), sample([1, 2, 5], [6]), sample([9], [8])
    )
    first, second, other = samples.rows()
    assert first.masked_tokens == [-100, 2, -100, 4]
    assert second.masked_tokens == [-100, -100, -100, 6]
    assert [turn.trained for turn in second.turns] == [False, True]
    assert other.masked_tokens == [-100, 8]


def test_each_of_several_equal_choices_is_a_row_and_only_one_is_continued():
    samples = samples_of(sample([1], [2]), sample([1], [2]), sample([1, 2, 3], [4]))
    rows = samples.rows()
    assert sorted(row.masked_tokens for row in rows) == [[-100, 2], [-100, 2, -100, 4]]


def test_a_rewritten_history_starts_a_new_row():
    rewritten = samples_of(sample([1], [2, 3]), sample([1, 2, 4], [5]))
    assert [row.tokens for row in rewritten.rows()] == [[1, 2, 3], [1, 2, 4, 5]]


def test_an_empty_choice_produces_no_row():
    assert samples_of(sample([1], [])).rows() == []


def test_an_undelivered_answer_is_left_out_unless_a_sample_continues_it():
    samples = samples_of(sample([1], [2]), sample([1, 2, 3], [4]), sample([1, 2, 3], [5]))
    rows = samples.rows(undelivered=frozenset({"c0", "c2"}))
    assert [row.masked_tokens for row in rows] == [[-100, 2, -100, 4]]
    (alone,) = samples.rows(undelivered=frozenset({"c1", "c2"}))
    assert alone.masked_tokens == [-100, 2]


def test_a_missing_reward_is_not_a_reward_of_zero():
    samples = samples_of(sample([1], [2]))
    assert samples.rows()[0].reward is None
    assert samples.rows(Rewards({"c0": 0.0}))[0].reward == 0.0


def test_turn_and_session_rewards_are_summed_along_the_row():
    samples = samples_of(sample([1], [2]), sample([1, 2, 3], [4]))
    (row,) = samples.rows(Rewards({"c0": 1.0}, session=4.0, discount=0.5))
    assert row.reward == 3.0
    assert [(turn.reward, turn.discounted) for turn in row.turns] == [(1.0, 3.0), (None, 4.0)]


def test_discounted_returns_equal_values_computed_by_hand():
    assert discounted_returns([None, 1.0, None], 2.0, 0.5) == [1.0, 2.0, 2.0]
    assert discounted_returns([1.0, None], None, 0.5) == [1.0, None]
    assert discounted_returns([], 1.0, 1.0) == []


turns = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.lists(st.integers(0, 2), max_size=2),
        st.lists(st.integers(0, 2), max_size=3),
    ),
    max_size=9,
)


@given(turns)
def test_every_sampled_token_is_trained_exactly_once_with_its_logprob_and_version(plan: Any):
    """Each sample continues an earlier one or none, over an alphabet small enough to clash."""
    samples, wholes, sampled = SampleTree(), [[]], []
    for i, (parent, given_tokens, tokens) in enumerate(plan):
        prompt = [*wholes[parent % len(wholes)], *given_tokens]
        samples.add(f"c{i}", 0, sample(prompt, tokens, version=i))
        wholes.append([*prompt, *tokens])
        sampled += [(i, len(prompt) + k, token) for k, token in enumerate(tokens)]
    trained = []
    for row in samples.rows():
        lengths = {len(row.masked_tokens), len(row.logprobs), len(row.versions)}
        assert lengths == {len(row.tokens)}
        for at, token in enumerate(row.masked_tokens):
            if token == -100:
                assert (row.logprobs[at], row.versions[at]) == (1.0, -1)
            else:
                assert (token, row.logprobs[at]) == (row.tokens[at], -token / 8)
                trained.append((row.versions[at], at, token))
        assert row.tokens in wholes
    assert sorted(trained) == sorted(sampled)


def test_a_row_has_the_experts_that_each_sample_was_first_to_report():
    def routed(*experts: int) -> RoutedExperts:
        return experts_entry(np.array(experts).reshape(-1, 1, 1))

    samples = samples_of(
        replace(sample([1, 2], [3]), routed_experts=routed(5, 6)),
        replace(sample([1, 2, 3, 4], [7]), routed_experts=routed(9, 9, 8, 4)),
        sample([1, 2, 3, 6], [7]),
    )
    first, second = samples.rows()
    assert first.routed_experts == routed(5, 6, 8, 4)
    assert second.routed_experts == routed(5, 6)
