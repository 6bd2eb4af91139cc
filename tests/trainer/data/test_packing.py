"""Tests of packing: grouping by length, trees of shared prefixes, lines."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from atroposlib.errors import ConfigError
from example_trainer.data.packing import (
    Pack,
    pack_ffd,
    pack_rows,
    padding_share,
    plan_microbatch,
    plan_microbatches,
)
from tests.trainer.rows import BRANCHING, row

EVERYTHING = {"max_tokens": 1000, "crossover": float("inf")}


def sums(groups, lengths):
    return [sum(lengths[i] for i in group) for group in groups]


def test_the_longest_come_first_and_join_the_group_with_the_fewest():
    lengths = [7, 5, 4, 3, 1]
    assert sums(pack_ffd(lengths, 10), lengths) == [10, 10]
    assert sums(pack_ffd(lengths, 10, min_groups=3), lengths) == [7, 6, 7]


def test_indices_are_sorted_in_each_group_and_groups_by_their_first():
    assert pack_ffd([1, 9, 2, 8], 10) == [[0, 1], [2, 3]]


def test_item_above_the_capacity_is_rejected_with_a_remedy():
    with pytest.raises(ConfigError, match="max_tokens_per_microbatch"):
        pack_ffd([3, 11], 10)


def test_groups_stay_empty_only_to_reach_the_divisor():
    assert pack_ffd([5, 5, 5], 10, divisor=2) == [[0, 1], [2]]
    assert pack_ffd([5, 5, 5], 10, divisor=4) == [[0], [1], [2], []]
    assert pack_ffd([5], 10, min_groups=3) == [[0]]
    assert pack_ffd([], 10, divisor=4) == []


@given(
    st.lists(st.integers(1, 20), max_size=40),
    st.integers(20, 60),
    st.integers(1, 6),
    st.integers(1, 5),
)
def test_every_item_is_in_one_group_within_the_capacity(lengths, capacity, least, divisor):
    groups = pack_ffd(lengths, capacity, least, divisor)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert all(total <= capacity for total in sums(groups, lengths))
    assert len(groups) % divisor == 0
    assert len(groups) >= min(least, len(lengths))
    if not all(groups):  # then no item could have filled the empty ones
        assert all(len(group) <= 1 for group in groups)


def test_a_shared_prefix_is_held_once():
    (pack,) = pack_rows(BRANCHING[:5], **EVERYTHING)
    # 4 of the prompt, then 10 and 11. What comes last in a row predicts nothing.
    assert sorted(pack.tokens) == [5, 6, 7, 8, 10, 11, 13]
    assert not pack.branches  # one row after all, which needs no mask
    (pack,) = pack_rows(BRANCHING[1:3] + [row([5, 6, 7, 8], [20, 21])], **EVERYTHING)
    assert pack.branches


def test_sixty_four_answers_to_eight_prompts_cost_eight_prompts():
    rows = [
        row(list(range(40)), [40, i, 41, 42, 43, 44], group=f"g{g}")
        for g in range(8)
        for i in range(8)
    ]
    packs = pack_rows(rows, max_tokens=1000, crossover=3000.0)
    assert len(packs) == 8
    assert sum(len(p.tokens) for p in packs) == 8 * (41 + 8 * 4)
    assert sum(len(r.tokens) for r in rows) == 64 * 46


def test_rows_with_little_in_common_are_packed_apart():
    # 10 shared of 1000 tokens: one mask over 2000 costs more than two of 1000.
    rows = [row(list(range(10)), [i] * 990) for i in (50, 60)]
    assert len(pack_rows(rows, max_tokens=10_000, crossover=3000.0)) == 2
    assert len(pack_rows(rows, max_tokens=10_000, crossover=float("inf"))) == 1


def test_sharing_can_be_switched_off():
    packs = pack_rows(BRANCHING, share=False, **EVERYTHING)
    assert len(packs) == len(BRANCHING) and not any(pack.branches for pack in packs)


def test_rows_of_several_groups_share_only_where_they_may_and_begin_alike():
    rows = [row([1, 2, 3, group], [7, 8], group=f"g{group}") for group in (5, 6)]
    rows.append(row([4, 5, 6, 7], [7, 8], group="g7"))
    at_cost = {"max_tokens": 1000, "crossover": 100.0}
    assert [len(p.tokens) for p in pack_rows(rows, **at_cost)] == [5, 5, 5]
    assert [len(p.tokens) for p in pack_rows(rows, across_groups=True, **at_cost)] == [7, 5]


def test_a_row_longer_than_the_budget_gets_its_own_microbatch():
    rows = [row(list(range(30)), [1, 2]), row([1], [2], group="h")]
    plan = plan_microbatches(
        pack_rows(rows, max_tokens=8, crossover=100.0), rows, max_tokens=8
    )
    assert [one.length for one in plan] == [31, 1]
    assert padding_share(plan) == 0


def test_packed_lines_have_no_padding_and_padded_lines_report_it():
    rows = [row([1], [2] * n, group=str(n)) for n in (1, 4, 8)]
    packs = pack_rows(rows, **EVERYTHING)
    (packed,) = plan_microbatches(packs, rows, max_tokens=1000)
    assert (packed.lines, packed.width) == (1, 1 + 4 + 8)
    padded = plan_microbatches(packs, rows, max_tokens=1000, padded=True)
    assert (padded[0].lines, padded[0].width) == (3, 8)
    assert padding_share([packed]) == 0
    assert padding_share(padded) == pytest.approx(1 - 13 / 24)


@pytest.mark.parametrize("padded", [False, True])
def test_there_is_a_microbatch_for_every_rank(padded):
    rows = [row([i], [2, 3], group=str(i)) for i in range(3)]
    packs = pack_rows(rows, **EVERYTHING)
    plan = plan_microbatches(packs, rows, 1000, divisor=4, padded=padded)
    assert [len(one.row_ids) for one in plan] == [1, 1, 1, 0]
    # The idle rank computes one token, which has no score.
    assert plan[-1].computed == 1 and plan[-1].length == 0 and plan[-1].shape == (1, 1)


token_rows = st.lists(
    st.tuples(st.sampled_from("gh"), st.lists(st.integers(0, 2), min_size=2, max_size=7)),
    min_size=1,
    max_size=8,
)


@given(token_rows, st.integers(4, 40), st.booleans(), st.booleans(), st.booleans())
def test_every_trained_token_is_scored_once_after_exactly_its_own_prefix(
    drawn, max_tokens, share, across, padded
):
    rows = [row(tokens[:1], tokens[1:], group=group) for group, tokens in drawn]
    packs = pack_rows(
        rows, max_tokens=max_tokens, crossover=20.0, share=share, across_groups=across
    )
    for pack in packs:  # a node per distinct prefix
        whole = [tuple(rows[i].tokens[: rows[i].trained[-1] + 1]) for i in pack.rows]
        prefixes = {tokens[: n + 1] for tokens in whole for n in range(len(tokens))}
        assert {tuple(prefix(pack, n)) for n in range(len(pack.tokens))} == prefixes
        assert len(pack.tokens) == len(prefixes)
    seen, longest = [], max(len(pack.tokens) for pack in packs)
    for plan in plan_microbatches(packs, rows, max_tokens, padded=padded):
        assert plan.computed <= max(max_tokens, longest)
        assert plan.head_index.tolist() == sorted(plan.head_index)
        for head, target, b, column in zip(
            plan.head_index, plan.targets, plan.rows, plan.columns
        ):
            place = plan.nodes[head]
            start, pack = max(
                (start, number) for number, start in enumerate(plan.starts) if start <= place
            )
            trained_row = rows[plan.row_ids[b]]
            end = trained_row.trained[column] + 1
            assert prefix(plan.packs[pack], place - start) == trained_row.tokens[:end]
            assert target == trained_row.tokens[end]
            seen.append((plan.row_ids[b], column))
    assert sorted(seen) == [
        (i, column) for i, one in enumerate(rows) for column in range(len(one.trained))
    ]


def prefix(pack: Pack, node: int) -> list[int]:
    tokens = []
    while node >= 0:
        tokens.append(pack.tokens[node])
        node = pack.parents[node]
    return tokens[::-1]


def test_teacher_candidates_follow_their_token():
    one = row(
        [5, 6], [7, 8], teacher_ids=[[], [7, 9], [1]], teacher_logprobs=[[], [0, 0], [0]]
    )
    plan = plan_microbatch(pack_rows([one, row([1], [2])], **EVERYTHING), [one, row([1], [2])])
    of_target = dict(zip(plan.targets, plan.teacher_ids))
    assert of_target == {7: [7, 9], 8: [1], 2: []}


@pytest.mark.parametrize("padded", [True, False])
def test_rows_on_both_sides_of_the_switch_have_passes_of_their_own(padded):
    rows = [row([1, 2], [3] * n) for n in (1, 3, 4, 9)]  # computed tokens: 2, 4, 5, 10
    packs = pack_rows(rows, **EVERYTHING, share=not padded, switch=5)
    plans = plan_microbatches(packs, rows, 1000, divisor=2, padded=padded, switch=5)
    sides = [sorted(plan.row_ids) for plan in plans if plan.packs]
    assert len(plans) == 4 and sorted(i for side in sides for i in side) == [0, 1, 2, 3]
    assert all(set(side) <= {0, 1} or set(side) <= {2, 3} for side in sides)
