from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, strategies as st

from atroposlib.generation.sampling.generation import Generation
from atroposlib.generation.sessions.sequences import (
    SequenceList,
    SequenceNode,
    SequenceSample,
    SequenceTree,
    extend_node,
    extended_by_text,
    extended_by_tokens,
    sampled_part,
)
from atroposlib.wire import MASKED
from atroposlib.wire.routing import RoutedExperts, experts_entry

ids = st.lists(st.integers(1, 3), max_size=4)


def as_text(tokens: list[int]) -> str:
    return "".join(chr(96 + token) for token in tokens)


def as_ids(text: str) -> list[int]:
    return [ord(char) - 96 for char in text]


def sampled(prompt: list[int], tokens: list[int], version: int = 0) -> Generation:
    return Generation(
        prompt_ids=prompt,
        tokens=tokens,
        logprobs=[-token / 8 for token in tokens],
        versions=[version] * len(tokens),
        finish_reason="stop",
    )


def add(
    sequences: SequenceList | SequenceTree,
    parent: SequenceNode | None,
    generation: Generation,
    text: str,
) -> SequenceNode:
    (node,) = sequences.add(parent, [SequenceSample(generation, text)])
    return node


def node_of(prompt: list[int], tokens: list[int]) -> SequenceNode:
    return extend_node(None, sampled(prompt, tokens), as_text(prompt + tokens))


def test_a_first_sample_is_trained_and_its_prompt_is_not() -> None:
    node = node_of([1, 2], [3, 1])
    assert node.tokens == [1, 2, 3, 1]
    assert node.masked_tokens == [-100, -100, 3, 1]
    assert node.logprobs == [1.0, 1.0, -0.375, -0.125]
    assert node.versions == [-1, -1, 0, 0]


def test_a_second_turn_keeps_the_first_one_trained() -> None:
    first = node_of([1], [2])
    second = extend_node(first, sampled([1, 2, 3], [1], version=5), "abca")
    assert second.masked_tokens == [-100, 2, -100, 1]
    assert second.logprobs == [1.0, -0.25, 1.0, -0.125]
    assert second.versions == [-1, 0, -1, 5]


def test_a_parent_that_is_no_prefix_of_the_prompt_adds_no_trained_tokens() -> None:
    node = extend_node(node_of([1], [2]), sampled([1, 3, 3], [1]), "acca")
    assert node.masked_tokens == [-100, -100, -100, 1]


def test_the_longest_of_several_prefixes_is_extended() -> None:
    short, long = node_of([1], [2]), node_of([1, 2, 3], [1])
    for nodes in ([short, long], [long, short]):
        assert extended_by_text(nodes, "abcab") is long
        assert extended_by_tokens(nodes, as_ids("abcab")) is long


def test_a_sequence_without_a_sample_at_its_end_is_not_extended() -> None:
    empty = node_of([1], [])
    assert extended_by_text([empty], "abc") is None
    assert extended_by_tokens([empty], [1, 2, 3]) is None


def test_sampled_tokens_are_kept_where_the_tokenizer_would_choose_others() -> None:
    """Token 9 stands for "bb", which the tokenizer itself would write as two tokens."""
    node = extend_node(None, sampled([1], [9]), "abb")
    assert extended_by_text([node], "abbc") is node and node.tokens == [1, 9]
    assert extended_by_tokens([node], as_ids("abbc")) is None


def test_a_prompt_that_rewrites_an_earlier_turn_starts_anew() -> None:
    assert extended_by_text([node_of([1], [2])], "acb") is None
    assert extended_by_tokens([node_of([1], [2])], [1, 3, 2]) is None


def continue_ab(sequences: SequenceList, token: int) -> None:
    """Add a sample of ``token`` after the prompt "abc", which extends a sequence "ab"."""
    node = extended_by_text(sequences.candidates(), "abc")
    assert node is not None
    generation = sampled(node.tokens + as_ids("c"), [token])
    add(sequences, node, generation, "abc" + as_text([token]))


def test_identical_siblings_are_each_continued_once() -> None:
    sequences = SequenceList()
    twins = [add(sequences, None, sampled([1], [2]), "ab") for _ in range(2)]
    for _ in twins:
        continue_ab(sequences, token=1)
    assert [node.tokens for node in sequences.leaves] == [[1, 2, 3, 1]] * 2
    assert all(node.masked_tokens == [-100, 2, -100, 1] for node in sequences.leaves)


def test_a_second_branch_of_a_turn_carries_that_turn_too() -> None:
    sequences = SequenceList()
    add(sequences, None, sampled([1], [2]), "ab")
    for token in (1, 2):
        continue_ab(sequences, token)
    assert [node.masked_tokens for node in sequences.leaves] == [
        [-100, 2, -100, 1],
        [-100, 2, -100, 2],
    ]


def test_a_tree_node_keeps_every_turn_and_trains_only_the_last_sample() -> None:
    tree = SequenceTree()
    root = add(tree, None, sampled([1], [2]), "ab")
    add(tree, root, sampled([1, 2, 3], [1]), "abca")
    add(tree, root, sampled([1, 2, 3], [1]), "abca")
    state = tree.state()
    assert state["tree"] == {"ab": ["abca", "abca#2"], "abca": [], "abca#2": []}
    assert state["sequences"]["abca"].masked_tokens == [-100, -100, -100, 1]
    assert state["sequences"]["abca#2"].metadata["parent"] == "ab"


@given(turns=st.lists(st.tuples(ids, st.lists(st.integers(1, 3), min_size=1)), max_size=5))
def test_a_conversation_is_one_row_whose_trained_tokens_are_those_sampled(
    turns: list[tuple[list[int], list[int]]],
) -> None:
    sequences = SequenceList()
    history: list[int] = [1]
    labels: list[int] = [MASKED]
    for given_ids, tokens in turns:
        history, labels = history + given_ids, labels + [MASKED] * len(given_ids)
        text = as_text(history)
        parent = extended_by_tokens(sequences.candidates(), history)
        add(sequences, parent, sampled(history, tokens), text + as_text(tokens))
        history, labels = history + tokens, labels + tokens
    if turns:
        (node,) = sequences.leaves
        assert (node.tokens, node.masked_tokens) == (history, labels)
        assert [value == 1.0 for value in node.logprobs] == [m == MASKED for m in labels]


def test_identical_siblings_of_concurrent_calls_are_each_extended_once() -> None:
    sequences = SequenceList()
    twins = [add(sequences, None, sampled([1], [2]), "ab") for _ in range(2)]
    for _ in twins:  # both calls had looked before either returned
        add(sequences, twins[0], sampled([1, 2, 3], [1]), "abca")
    assert [node.masked_tokens for node in sequences.leaves] == [[-100, 2, -100, 1]] * 2


def test_a_sequence_not_continued_by_the_server_keeps_its_position() -> None:
    for sequences in (SequenceList(), SequenceTree()):
        first = add(sequences, None, sampled([1], [2]), "ab")
        other = add(sequences, first, sampled([3, 3], [1]), "cca")
        assert sequences.candidates() == [first, other]
        assert other.masked_tokens == [-100, -100, 1] and "parent" not in other.metadata


def test_the_first_choice_replaces_its_parent_and_the_others_branch_off() -> None:
    sequences = SequenceList()
    first, last = (add(sequences, None, sampled([k], [2]), "x") for k in (1, 3))
    turn = [SequenceSample(sampled([1, 2, 3], [k]), "abc" + as_text([k])) for k in (1, 2, 1)]
    nodes = sequences.add(first, turn)
    assert [id(node) for node in sequences.leaves] == [
        id(node) for node in (nodes[0], last, nodes[1], nodes[2])
    ]
    assert all(node.masked_tokens[:3] == [-100, 2, -100] for node in nodes)


def routed(*experts: int) -> RoutedExperts:
    """One layer, one expert for each of the first tokens."""
    return experts_entry(np.array(experts).reshape(-1, 1, 1))


def test_experts_that_were_recorded_stay_when_a_later_turn_reports_others() -> None:
    first = replace(sampled([1], [2]), routed_experts=routed(7))
    second = replace(sampled([1, 2, 3], [1]), routed_experts=routed(0, 5, 6))
    node = extend_node(extend_node(None, first, "ab"), second, "abca")
    assert node.routed_experts == routed(7, 5, 6)
    silent = extend_node(node, sampled([1, 2, 3, 1], [2]), "abcab")
    assert silent.routed_experts == routed(7, 5, 6)
    assert sampled_part(node, 3).routed_experts == node.routed_experts
