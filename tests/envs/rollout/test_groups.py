"""Samples to groups: no field is lost, arguments are not changed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from atroposlib.envs.function_env.rollout_model import Reply
from atroposlib.envs.rollout.filters import FilterRules, RejectedGroup, filter_group
from atroposlib.envs.rollout.groups import (
    collate,
    from_node,
    from_nodes,
    groups_in,
    item_label,
    plain,
    row_facts,
    score_problem,
    unknown_fields,
    with_metadata,
    without_unscored,
)
from atroposlib.errors import InvalidGroup
from tests.envs.rollout.rows import group


def item(score=1.0, **more):
    return {"tokens": [1, 5, 9], "masks": [-100, -100, 9], "scores": score, **more}


def judged(g, **changes):
    return filter_group(g, FilterRules(**{"group_size": 2, "max_token_len": 10, **changes}))


def reason(g, **changes):
    verdict = judged(g, **changes)
    return verdict.reason if isinstance(verdict, RejectedGroup) else None


class Node:
    def __init__(self, tokens, masked, logprobs, versions, reason="stop"):
        self.tokens, self.masked_tokens, self.logprobs = tokens, masked, logprobs
        self.versions, self.metadata = versions, {"finish_reason": reason}


def test_collated_items_keep_every_field():
    rows = [
        item(
            score,
            inference_logprobs=[1.0, 1.0, -0.5],
            versions=[-1, -1, 3],
            distill_token_ids=[[], [1], [2]],
            distill_logprobs=[[], [-0.1], [-0.2]],
            generation_params={"temperature": 1.0},
            finish_reasons="stop",
            messages=[{"role": "user", "content": "hi"}],
            group_overrides={"group_size": 2},
            metadata={"metrics": {"exact": score}},
        )
        for score in (0.0, 1.0)
    ]
    made = collate(rows)
    assert made["scores"] == [0.0, 1.0]
    assert made["inference_logprobs"] == [[1.0, 1.0, -0.5]] * 2
    assert made["versions"] == [[-1, -1, 3]] * 2
    assert made["distill_token_ids"] == [[[], [1], [2]]] * 2
    assert made["generation_params"] == {"temperature": 1.0}
    assert made["finish_reasons"] == ["stop", "stop"]
    assert made["group_overrides"] == {"group_size": 2}
    metrics_R = [{"metrics": {"exact": 0.0}}, {"metrics": {"exact": 1.0}}]
    assert made["metadata"] == {"metrics": {"exact": 0.5}, "rows": metrics_R}


def test_facts_of_a_row_are_bounded_and_unknown_ones_are_absent():
    assert row_facts({}, None) == {}
    span = {"start": 1, "end": 2, "temperature": 1.0}
    assert row_facts({"timings": {"generate": 0.5}}, [span, span]) == {
        **{"timings": {"generate": 0.5}, "turns": 2}
    }
    many = {"metrics": {str(n): n for n in range(99)}, "judge": 9999 * "x", "tool_calls": 0}
    facts = row_facts(many, None)
    assert (len(facts["metrics"]), len(facts["judge"]), facts["tool_calls"]) == (32, 2000, 0)


def test_rows_without_a_score_leave_with_their_facts():
    group = {**collate([item(), item(0.0)]), "scores": [None, 0.0]}
    group["metadata"] = {"rows": [{"turns": 1}, {"turns": 2}], "item": "7"}
    assert without_unscored(group)["metadata"] == {"rows": [{"turns": 2}], "item": "7"}


def test_a_field_that_no_item_has_stays_absent():
    assert set(collate([item(), item(0.0)])) == {"tokens", "masks", "scores"}


def test_sampling_parameters_that_differ_become_overrides_of_the_sequence():
    made = collate(
        [
            item(generation_params={"temperature": 0.7, "top_p": 1.0}),
            item(
                generation_params={"temperature": 1.0, "top_p": 1.0}, overrides={"sft": True}
            ),
        ]
    )
    assert made["generation_params"] == {"top_p": 1.0}
    assert made["overrides"] == [{"temperature": 0.7}, {"temperature": 1.0, "sft": True}]


def test_a_row_that_only_some_items_have_is_refused_with_its_place():
    with pytest.raises(InvalidGroup, match=r"inference_logprobs\[1\]"):
        collate([item(inference_logprobs=[1.0, 1.0, -0.5]), item()])


def test_nodes_become_rows_with_versions_and_finish_reasons():
    nodes = [
        Node([1, 9], [-100, 9], [1.0, -0.5], [-1, 4]),
        Node([1, 8], [-100, 8], [1.0, -2.0], [-1, 4], "length"),
    ]
    made = from_nodes(
        nodes, [1, 0], generation_params={"temperature": 0.5}, metrics={"exact": 0.5}
    )
    assert made["tokens"] == [[1, 9], [1, 8]]
    assert made["masks"] == [[-100, 9], [-100, 8]]
    assert made["inference_logprobs"] == [[1.0, -0.5], [1.0, -2.0]]
    assert made["versions"] == [[-1, 4], [-1, 4]]
    assert made["finish_reasons"] == ["stop", "length"]
    assert made["scores"] == [1.0, 0.0]
    assert made["metadata"] == {"metrics": {"exact": 0.5}}
    with pytest.raises(InvalidGroup, match="1 scores for 2 sequences"):
        from_nodes(nodes, [1.0])


def test_items_of_single_nodes_collate_to_the_group_of_all_of_them():
    for versions in ([-1, 4], []):  # []: the server does not know them
        nodes = [
            Node([1, 9], [-100, 9], [1.0, -0.5], versions),
            Node([1, 8], [-100, 8], [1.0, -2.0], versions, "length"),
        ]
        params = {"temperature": 0.5}
        items = [from_node(node, 1.0, generation_params=params, metrics={}) for node in nodes]
        whole = from_nodes(nodes, [1.0, 1.0], generation_params=params)
        assert collate(items) == {k: v for k, v in whole.items() if v is not None}
        assert items[0]["tokens"] is not nodes[0].tokens


def test_made_up_tokens_are_rejected(monkeypatch):
    monkeypatch.delenv("ATROPOS_ALLOW_DUMMY_MANAGED_SERVER", raising=False)
    node = Node([1, 9], [-100, 9], [1.0, -0.5], [])
    node.metadata = {"dummy_tokens": True}
    with pytest.raises(InvalidGroup, match="made up"):
        from_node(node, 1.0)
    with pytest.raises(InvalidGroup, match=r"tokens\[0\]: made up"):
        from_nodes([node], [1.0])


def test_a_reply_in_the_history_of_messages_is_sent_as_its_text():
    reply = Reply("four")
    messages = [[{"role": "assistant", "content": reply, "names": [reply]}]] * 2
    columns = judged(group(messages=messages)).columns
    found = columns.rest_value("messages")[0][0]
    assert found == {"role": "assistant", "content": "four", "names": ["four"]}
    assert type(plain(reply)) is str


def test_collected_groups_are_listed_without_empty_entries():
    made = group()
    assert groups_in(None) == groups_in({}) == groups_in([None, {}]) == []
    assert groups_in(made) == groups_in([None, made]) == groups_in((made,)) == [made]


def test_rows_without_a_score_are_left_out_and_the_others_stay_whole():
    made = group(
        (0.0, None, 1.0),
        tokens=[[1], [2], [3]],
        finish_reasons=["stop", "length", "stop"],
        generation_params={"temperature": 1.0},
    )
    left = without_unscored(made)
    assert left["tokens"] == [[1], [3]]
    assert left["scores"] == [0.0, 1.0]
    assert left["finish_reasons"] == ["stop", "stop"]
    assert left["generation_params"] == {"temperature": 1.0}
    assert made["scores"] == [0.0, None, 1.0]
    assert without_unscored(group()) == group()


@pytest.mark.parametrize("score", [float("nan"), float("inf"), "1", [1.0]])
def test_a_score_that_is_not_a_finite_number_is_refused(score):
    assert score_problem(item(score))


@pytest.mark.parametrize("score", [None, 0, True, -1.5, np.float32(1)])
def test_finite_numbers_and_missing_scores_are_accepted(score):
    assert score_problem(item(score)) is None


@given(
    st.recursive(st.integers() | st.floats(allow_nan=False) | st.none() | st.text(), st.lists)
)
def test_plain_values_stay_what_they_are(value):
    assert plain(value) == value


def test_metadata_of_the_environment_wins_and_unknown_fields_are_named():
    made = group(metadata={"item": "mine"}, reward_notes="x")
    assert with_metadata(made, item="theirs", env="toy")["metadata"] == {
        "item": "mine",
        "env": "toy",
    }
    assert unknown_fields(made) == ["reward_notes"]


def test_items_are_named_by_their_id_else_by_their_repr():
    assert item_label({"id": 7}) == "7"
    assert item_label((1, "a")) == "(1, 'a')"
    assert len(item_label("x" * 1000)) == 200
