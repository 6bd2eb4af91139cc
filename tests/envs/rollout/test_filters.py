"""Group filter: one named reason for each rejected group."""

from __future__ import annotations

import copy

import msgspec
import numpy as np
import pytest

from atroposlib.envs.rollout.filters import (
    FilterRules,
    RejectedGroup,
    RejectReason,
    filter_group,
)
from atroposlib.envs.rollout.groups import PER_ROW, with_metadata
from atroposlib.wire.columns import to_group
from tests.envs.rollout.rows import group


def judged(g, **changes):
    return filter_group(g, FilterRules(**{"group_size": 2, "max_token_len": 10, **changes}))


def reason(g, **changes):
    verdict = judged(g, **changes)
    return verdict.reason if isinstance(verdict, RejectedGroup) else None


def record_of(g, env_id=3):
    """What the rollout API gets."""
    return to_group(judged(g).as_sent(env_id))


@pytest.mark.parametrize("name", sorted(set(PER_ROW) - {"tokens", "masks", "scores"}))
@pytest.mark.parametrize("empty", [[], ()], ids=["list", "tuple"])
def test_an_optional_field_without_entries_is_an_absent_field(name, empty):
    assert record_of(group(**{name: empty})) == record_of(group())


@pytest.mark.parametrize(
    ("messages", "sent"),
    [
        (["a", "b"], [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]),
        ([[], [{"role": "tool", "content": None}]], [[], [{"role": "tool", "content": None}]]),
    ],
)
def test_the_text_of_a_row_is_sent_as_a_message(messages, sent):
    made = group(messages=messages)
    assert record_of(made).messages == sent
    assert judged(made).group["messages"] == messages  # the file has the author's


@pytest.mark.parametrize(
    ("made", "changes", "expected"),
    [
        (group(), {}, None),
        (group((1.0, 1.0)), {}, RejectReason.SAME_SCORES),
        (group((1.0, 1.0)), {"ensure_scores_are_not_same": False}, None),
        (group((0.0, 1.0, 2.0)), {}, RejectReason.WRONG_SIZE),
        (group((0.0, 1.0, 2.0), group_overrides={"group_size": 3}), {}, None),
        (group(group_overrides=None), {}, None),
        (group(), {"max_token_len": 3}, None),  # exactly as long as allowed
        (group(), {"max_token_len": 2}, RejectReason.TOO_LONG),
        (group(), {"max_token_len": 2, "drop_too_long": False}, None),
        (group(), {"max_token_len": -1}, None),
        (group((0.0, float("nan"))), {}, RejectReason.INVALID),
        (group(inference_logprobs=[[1.0, 1.0], [1.0, 1.0]]), {}, RejectReason.INVALID),
        (group(tokens=[[1, 5, 9], ["x", 5, 9]]), {}, RejectReason.INVALID),
        (group(tokens=[[1, 5, 9], [1.5, 5, 9]]), {}, RejectReason.INVALID),
        (group((0.0, None)), {}, RejectReason.INVALID),
        (group((0.0, [1.0])), {}, RejectReason.INVALID),
        (group(masks=None), {}, RejectReason.INVALID),
        (group(overrides=[{}]), {}, RejectReason.INVALID),
        (group(metadata={"function": print}), {}, RejectReason.INVALID),
        (group(tokens=[7, 8]), {}, RejectReason.MALFORMED),
        (group(tokens=7), {}, RejectReason.MALFORMED),
        (group(masks=[3, 4]), {}, RejectReason.MALFORMED),
        (group(advantages=[[1.0], 1.0, None]), {}, RejectReason.MALFORMED),
        (group(group_overrides=[1]), {}, RejectReason.MALFORMED),
    ],
)
def test_a_group_is_dropped_for_one_named_reason(made, changes, expected):
    assert reason(made, **changes) == expected


def test_an_accepted_group_names_what_stricter_rules_reject():
    lenient = {"ensure_scores_are_not_same": False, "drop_too_long": False}
    verdict = judged(group((1.0, 1.0)), max_token_len=2, **lenient)
    reasons = [fault.reason for fault in verdict.faults]
    assert reasons == [RejectReason.SAME_SCORES, RejectReason.TOO_LONG]
    assert judged(group()).faults == ()


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (group((0.0, float("nan"))), "scores[1]"),
        (group((float("-inf"), 1.0)), "scores[0]"),
        (group((0.0, None)), "scores[1]"),
        (group(inference_logprobs=[[1.0, 1.0, -0.5], [1.0, 1.0, float("nan")]]), "[1][2]"),
        (group(messages=[[{"role": "user"}], []]), "messages[0][0]"),
        (group(masks=None), "masks"),
    ],
)
def test_the_problem_of_a_group_is_named(made, named):
    assert named in judged(made).detail


@pytest.mark.parametrize("given", [[1, -0.5], np.array([1.0, -0.5]), [[1, 1, 1], -0.5]])
def test_a_number_for_a_row_of_advantages_is_a_constant_row(given):
    assert record_of(group(advantages=given)).advantages == [[1.0] * 3, [-0.5] * 3]


def test_filtering_and_sending_do_not_change_the_group():
    made = group(group_overrides=None, idempotency_key="k")
    before = copy.deepcopy(made)
    record_of(made)
    with_metadata(made, env="toy")
    assert made == before


def test_a_sent_group_has_the_environments_number_and_its_key():
    sent = record_of(group(idempotency_key="k"), env_id=7)
    assert (sent.env_id, sent.idempotency_key, sent.group_id) == (7, "k", "k")
    assert record_of(group(idempotency_key="k", group_id="prompt")).group_id == "prompt"


def test_arrays_and_numpy_numbers_become_plain():
    made = {
        "tokens": [np.array([1, 5, 9]), [np.int64(1), 5, 9]],
        "masks": np.array([[-100, -100, 9]] * 2),
        "scores": [np.float32(0.5), True],
        "metadata": {"metrics": {"exact": np.float64(0.25)}},
    }
    record = record_of(made)
    assert record.tokens == [[1, 5, 9], [1, 5, 9]]
    assert record.masks == [[-100, -100, 9]] * 2
    assert record.scores == [0.5, 1.0]
    assert msgspec.json.decode(msgspec.json.encode(record))["metadata"] == {
        "metrics": {"exact": 0.25}
    }


class Picture:
    """As those of PIL: no JSON, and a PNG of itself."""

    def _repr_png_(self):
        return b"png"


def test_bytes_and_pictures_are_sent_as_base64():
    record = record_of(group(images=[Picture(), b"raw"]))
    assert record.images == ["cG5n", "cmF3"]


def test_lengths_count_trained_tokens_only():
    uneven = group(tokens=[[1, 5, 9], [1, 5]], masks=[[-100, 5, 9], [-100, -100]])
    assert judged(uneven).trained_lengths() == [2, 0]
