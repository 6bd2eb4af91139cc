"""Rows copied from nodes, as environments of the original make them, and what completes them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from atroposlib.envs.rollout.filters import (
    AcceptedGroup,
    FilterRules,
    filter_group,
    with_sampled,
)
from atroposlib.envs.rollout.groups import collate, from_node, from_nodes
from atroposlib.generation.sampling.generation import Generation
from atroposlib.generation.sessions.sequences import extend_node
from atroposlib.wire import MASKED_VERSION
from atroposlib.wire.routing import experts_entry


def sampled(
    prompt, tokens, temperature=0.7, *, parent=None, version=3, reason="stop", experts=None
):
    generation = Generation(
        prompt_ids=prompt,
        tokens=tokens,
        logprobs=[-token / 8 - temperature for token in tokens],
        versions=[version] * len(tokens),
        finish_reason=reason,
        logprob_kind="scaled",
        sampling={"temperature": temperature},
        routed_experts=experts,
    )
    return extend_node(parent, generation, "")


def copied(*nodes, **more):
    """A group of tokens, masks, scores and logprobs alone."""
    return {
        "tokens": [node.tokens for node in nodes],
        "masks": [node.masked_tokens for node in nodes],
        "scores": [float(i) for i in range(len(nodes))],
        "inference_logprobs": [node.logprobs for node in nodes],
        **more,
    }


def span(start, end, temperature=0.7, **more):
    return {
        **{"start": start, "end": end, "temperature": temperature, "logprobs": "scaled"},
        **more,
    }


def unsealed(sampling):
    return [
        [{k: v for k, v in call.items() if k != "seal"} for call in row] for row in sampling
    ]


def test_copied_rows_get_sampling_versions_and_finish_reasons():
    a, b = sampled([1, 2], [5, 6]), sampled([1, 2], [5], reason="length")
    group = with_sampled(copied(a, b), [b, a])
    assert unsealed(group["sampling"]) == [
        [span(2, 4, finish_reason="stop")],
        [span(2, 3, finish_reason="length")],
    ]
    assert [row[0]["seal"] for row in group["sampling"]] == [
        a.spans[0]["seal"],
        b.spans[0]["seal"],
    ]
    assert group["versions"] == [[-1, -1, 3, 3], [-1, -1, 3]]
    assert group["finish_reasons"] == ["stop", "length"]
    assert group["generation_params"] == {"temperature": 0.7}  # for trainers of the original


def test_every_turn_keeps_its_temperature():
    first = sampled([1, 2], [5], 0.5)
    node = sampled([1, 2, 5, 9], [6], 1.0, parent=first, version=4)
    group = with_sampled(copied(node), [node])
    assert [one["temperature"] for one in group["sampling"][0]] == [0.5, 1.0]
    assert group["versions"] == [[-1, -1, 3, -1, 4]]
    assert "generation_params" not in group  # no one temperature would be true


def test_a_row_joined_from_single_turns_finds_each_of_them():
    turns = [sampled([1, 2], [5], 0.5), sampled([1, 2, 5, 9], [6], 1.0)]
    whole = sampled([1, 2, 5, 9], [6], 1.0, parent=turns[0])
    group = with_sampled(copied(whole), turns)
    assert [(s["start"], s["end"]) for s in group["sampling"][0]] == [(2, 3), (4, 5)]


def test_a_row_that_was_cut_has_no_finish_reason():
    node = sampled([1], [5, 6, 7])
    group = copied(node)
    for name in ("tokens", "masks", "inference_logprobs"):
        group[name] = [group[name][0][:3]]
    found = with_sampled(group, [node])
    assert found["sampling"] == [[span(1, 3)]] and found["finish_reasons"] == [None]


def test_equal_tokens_at_other_temperatures_are_told_apart_by_their_logprobs():
    warm, cold = sampled([1], [5], 1.0), sampled([1], [5], 0.5)
    group = with_sampled(copied(warm, cold), [warm, cold])
    assert [row[0]["temperature"] for row in group["sampling"]] == [1.0, 0.5]


def test_rows_of_other_origin_and_complete_groups_stay_as_they_are():
    node = sampled([1], [5])
    other = copied(sampled([1], [6]))
    assert with_sampled(other, [node]) == other
    complete = copied(node, sampling=[[]])
    assert with_sampled(complete, [node]) == complete


def test_what_the_environment_states_itself_is_kept():
    node = sampled([1], [5])
    own = {
        "versions": [[-1, 9]],
        "finish_reasons": ["eos"],
        "overrides": [{"temperature": 1.0}],
    }
    found = with_sampled(copied(node, **own), [node])
    assert {name: found[name] for name in own} == own
    assert "generation_params" not in found


def test_the_filter_completes_groups_that_it_accepts():
    a, b = sampled([1, 2], [5, 6]), sampled([1, 2], [7])
    found = filter_group(copied(a, b), FilterRules(2), [a, b])
    assert isinstance(found, AcceptedGroup)
    sampling = unsealed(found.columns.rest_value("sampling"))
    assert sampling[1] == [span(2, 3, finish_reason="stop")]
    assert set(found.columns.versions.tolist()) == {MASKED_VERSION, 3}


ids = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(
    prompt=ids,
    turns=st.lists(st.tuples(ids, st.sampled_from([0.5, 0.7, 1.0]), ids), max_size=4),
)
def test_a_conversation_of_any_turns_is_labelled_token_by_token(prompt, turns):
    node, expected, nodes = None, [-1.0] * len(prompt), []
    for tokens, temperature, between in turns:
        node = sampled(
            [*(node.tokens if node else []), *prompt], tokens, temperature, parent=node
        )
        nodes.append(node)
        expected += [temperature] * len(tokens) + [-1.0] * len(between)
        prompt = between
    if node is None:
        return
    (spans,) = with_sampled(copied(node), nodes)["sampling"]
    found = [-1.0] * len(node.tokens)
    for one in spans:
        found[one["start"] : one["end"]] = [one["temperature"]] * (one["end"] - one["start"])
    assert found == expected[: len(found)]
    assert [t < 0 for t in found] == [label == -100 for label in node.masked_tokens]


def test_copied_rows_get_the_experts_of_their_nodes_up_to_their_cut():
    def routed(*experts):
        return experts_entry(np.array(experts).reshape(-1, 1, 1))

    node = sampled([1, 2], [5, 6], experts=routed(3, 1, 2))
    cut = copied(node)
    for name in ("tokens", "masks", "inference_logprobs"):
        cut[name] = [cut[name][0][:3]]
    assert with_sampled(copied(node), [node])["routed_experts"] == [routed(3, 1, 2)]
    assert with_sampled(cut, [node])["routed_experts"] == [routed(3, 1, 2)]
    cut["tokens"], cut["masks"], cut["inference_logprobs"] = [[9]], [[9]], [[-1.0]]
    assert "routed_experts" not in with_sampled(cut, [node])
    assert from_nodes([node], [1.0])["routed_experts"] == [routed(3, 1, 2)]
    silent = sampled([1, 2], [5, 6])
    rows = [from_node(node, 1.0), from_node(silent, 0.0)]
    assert collate(rows)["routed_experts"] == [routed(3, 1, 2), None]
