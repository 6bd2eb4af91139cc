"""Groups of a file as the page of a run shows them."""

from __future__ import annotations

import pytest

from atroposlib.frontend.page_groups import group_facts, group_replies, shared_messages
from tests.cli.view_run.toys import TOKENIZER

SCORED = {
    "messages": [
        [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": answer}]
        for answer in ("4", "5")
    ],
    "scores": [1.0, 0.0],
    "tokens": [[50, 43, 50, 63, 52], [50, 43, 50, 63, 53]],
    "masks": [[-100] * 4 + [52], [-100] * 4 + [53]],
    "inference_logprobs": [[1.0] * 4 + [-0.05], [1.0] * 4 + [-3.0]],
    "versions": [[-1] * 4 + [7]] * 2,
    "finish_reasons": ["stop", "length"],
    "metadata": {"item": "2+2", "env": "sums", "named_rewards": [{"exact": 1}, {"exact": 0}]},
}


def replies_of(group, room=99):
    return group_replies(group, 3, group_facts(group, 3), TOKENIZER, room)


def test_a_row_has_the_facts_of_its_sample():
    [row, other], replies, shown = replies_of(SCORED)
    assert (row.gid, row.env, row.item, row.finish_reason) == (3, "sums", "2+2", "stop")
    assert (row.n_tokens, row.n_trained, row.logprob_mean) == (5, 1, -0.05)
    assert (other.reward, other.version_min, other.version_max) == (0.0, 7, 7)
    assert row.metrics == {"exact": 1.0}
    assert shown == 10
    view = replies["groups/3"]
    assert (view.baseline, view.spread, view.rows) == (0.5, 0.5, [row, other])


def test_the_prompt_that_all_samples_share_is_held_once():
    replies = replies_of(SCORED)[1]
    assert replies["groups/3/shared"] == SCORED["messages"][0][:1]
    assert [m["content"] for m in replies["groups/3/rows/1"].messages] == ["5"]
    assert shared_messages([[1, 2], [1, 3]]) == 1
    assert shared_messages([[1, 2, 3], [9, 2]]) == shared_messages([["text"]]) == 0
    said = {"role": "assistant"}
    assert shared_messages([[said, 1], [said, 1]]) == 0


def test_tokens_of_a_row_have_text_mask_logprob_and_version():
    columns = replies_of(SCORED)[1]["groups/3/rows/0"].columns
    assert columns.text == list("2+2?4")
    assert columns.trained == [0, 0, 0, 0, 1]
    assert (columns.logprob[-1], columns.version[-1]) == (-0.05, 7)


def test_tokens_beyond_the_room_of_a_page_are_counted():
    _, replies, shown = replies_of(SCORED, room=3)
    first, second = (replies[f"groups/3/rows/{g}"] for g in range(2))
    assert (first.n_tokens, second.n_tokens, shown) == (3, 0, 3)
    assert first.metadata["left out"] == "the last 2 of 5 tokens"


def test_columns_of_another_length_are_left_out():
    group = {**SCORED, "masks": [[-100]] * 2, "versions": [[1]] * 2, "tokens": [1, "x"]}
    row = replies_of(group)[1]["groups/3/rows/0"]
    assert (row.n_tokens, row.columns.trained, row.columns.version) == (0, [], None)


@pytest.mark.parametrize("scores", [[None, None], [float("nan"), "high"]])
def test_without_scores_mean_and_spread_are_unknown(scores):
    view = replies_of({"messages": ["a", "b"], "scores": scores})[1]["groups/3"]
    assert view.baseline is view.spread is None
