"""Facts of rows at intake."""

from __future__ import annotations

import json

import pytest

from atroposlib.api.codec import read_group
from atroposlib.api.codec.formats import GROUP_MEDIA
from atroposlib.api.codec.row_facts import facts_of
from atroposlib.wire.binary import PackedGroup, pack_group

GROUP = {
    "tokens": [[1, 5, 7, 8], [1, 5, 9]],
    "masks": [[-100, -100, 7, 8], [-100, -100, -100]],
    "scores": [1.0, 0.25],
    "inference_logprobs": [[1.0, 1.0, -0.5, -1.5], [1.0, 1.0, 1.0]],
    "versions": [[-1, -1, 3, 5], [-1, -1, -1]],
    "group_id": "gsm8k/17",
    "finish_reasons": ["stop", None],
    "outcomes": ["ok", "truncated"],
    "messages": [
        [
            {"role": "user", "content": "2+2"},
            {"role": "assistant", "content": "", "tool_calls": [{}, {}]},
            {"role": "assistant", "content": "4"},
        ],
        [{"role": "user", "content": "2+2"}],
    ],
    "metadata": {"item": 17, "rows": [{"turns": 9, "timings": {"generate": 1.5}}, None]},
}


@pytest.mark.parametrize("binary", [False, True])
def test_facts_of_json_and_binary_posts_are_equal(binary):
    body, kind = json.dumps(GROUP).encode(), "application/json"
    if binary:
        body, kind = pack_group(GROUP), GROUP_MEDIA
    facts = read_group(body, kind).facts
    assert (facts.item, facts.group_id) == ("17", "gsm8k/17")
    first, second = facts.rows
    assert first[:7] == (1.0, 4, 2, 3, 5, -1.0, None)
    assert first[7:] == (9, 2, "stop", "ok", 1.5)
    assert second == (0.25, 3, 0, None, None, None, None, 0, 0, None, "truncated", None)


def test_what_a_group_does_not_contain_is_unknown():
    few = {name: GROUP[name] for name in ("tokens", "masks", "scores")}
    [row, _] = read_group(json.dumps(few).encode(), "application/json").facts.rows
    assert row == (1.0, 4, 2, *[None] * 9)


@pytest.mark.parametrize("advantages", [[1e308, 1e308], [-1e308] * 4])
def test_a_mean_whose_sum_overflows_is_unknown(advantages):
    ones = [[1] * len(advantages)]
    group = {"tokens": ones, "masks": ones, "scores": [1.0], "advantages": [advantages]}
    body = json.dumps(group).encode()
    facts = read_group(body, "application/json").facts
    assert (facts.rows[0].n_trained, facts.rows[0].advantage) == (len(advantages), None)


@pytest.mark.parametrize("left_out", ["", "versions", "inference_logprobs"])
def test_facts_of_chunks_are_those_of_whole_arrays(monkeypatch, left_out):
    group = GROUP | {"advantages": [[0.5] * 4, [-1.0] * 3], left_out: None}
    stored = read_group(json.dumps(group).encode(), "application/json")
    monkeypatch.setattr("atroposlib.wire.binary.CHUNK_BYTES", 8)
    assert facts_of(PackedGroup(stored.payload)) == stored.facts
    assert stored.facts.rows[0].advantage == 0.5


def test_advantages_that_do_not_fit_the_tokens_are_unknown():
    body = json.dumps(GROUP | {"advantages": [[0.5], [0.5] * 9]}).encode()
    rows = read_group(body, "application/json").facts.rows
    assert [(row.advantage, row.logprob_mean) for row in rows] == [(None, -1.0), (None, None)]


@pytest.mark.parametrize("rows", [[], ["x"], "x", [{"timings": 3}, {"turns": "many"}]])
def test_metadata_of_another_form_changes_nothing(rows):
    odd = GROUP | {"metadata": {"rows": rows}}
    [row, _] = read_group(json.dumps(odd).encode(), "application/json").facts.rows
    assert (row.turns, row.generate_s) == (2, None)
