"""Columns: checks, ragged distillation, exact numbers."""

from __future__ import annotations

import pytest
import safetensors.numpy

from atroposlib.errors import InvalidGroup
from atroposlib.wire.binary import pack_group, unpack_group
from atroposlib.wire.columns import from_group
from tests.wire.records import GROUP, as_record, group


def test_positions_may_have_unequal_numbers_of_distilled_choices():
    choices = [[[], [1, 2], [3]], [[4], []]]
    data = pack_group(GROUP | {"distill_token_ids": choices}, compress=False)
    assert safetensors.numpy.load(data)["distill_counts"].tolist() == [0, 2, 1, 1, 0]
    assert unpack_group(data).distill_token_ids == choices


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"tokens": [[1, 5, 9], [2, 2**31]]}, "tokens[1][1]"),
        ({"tokens": [[1, 5, 9], [2, 2**70]]}, "tokens"),
        ({"tokens": [[1, 5, 9], []]}, "tokens[1]"),
        (dict.fromkeys(["tokens", "masks", "scores"], []) | {"versions": []}, "tokens"),
        ({"masks": [[-100, -100, 9], [7]]}, "masks[1]"),
        ({"scores": [0.1]}, "scores"),
        ({"scores": [0.1, float("nan")]}, "scores[1]"),
        ({"inference_logprobs": [[1.0, 1.0, -0.5], [1.0, float("inf")]]}, "[1][1]"),
        ({"versions": [[-1, -1, 3], [-1, -2]]}, "versions[1][1]"),
        ({"distill_token_ids": [[[1]], [[2]]]}, "distill_token_ids"),
        ({"messages": [[{"role": "user"}], []]}, "messages[0][0]"),
        ({"sampling": [[]]}, "sampling"),
        ({"sampling": [[{"start": 1, "end": 2}], []]}, "temperature"),
        ({"sampling": [[], [{"start": 1, "end": 3, "temperature": 1}]]}, "sampling[1][0]"),
        ({"sampling": [[{"start": 0, "end": 1, "temperature": -1}], []]}, "sampling[0][0]"),
        (
            {"sampling": [[{"start": s, "end": 3, "temperature": 1} for s in (0, 2)], []]},
            "sampling[0][1]",
        ),
        ({"outcomes": ["ok", "secret"]}, "group"),
    ],
)
def test_groups_that_cannot_be_trained_on_are_not_packed(change, place):
    with pytest.raises(InvalidGroup) as refusal:
        pack_group(GROUP | change)
    assert place in str(refusal.value) and "secret" not in str(refusal.value)


def test_numbers_of_another_type_are_rejected_and_not_truncated():
    record = as_record(GROUP)
    record.tokens = [[1, 5.5, 9], [2, 7]]
    with pytest.raises(InvalidGroup, match="tokens"):
        pack_group(record)


def test_a_group_that_follows_the_record_is_accepted() -> None:
    from_group(group())


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"tokens": [], "masks": [], "scores": []}, "tokens"),
        ({"tokens": [[1, 5, 9], []], "masks": [[-100, -100, 9], []]}, "tokens[1]"),
        ({"tokens": [[1, 5, -9], [1, 5, 7]]}, "tokens[0][2]"),
        ({"tokens": [[1, 5, 9], [1, 5, 2**31]]}, "tokens[1][2]"),
        ({"masks": [[-100, -100, 9]]}, "masks"),
        ({"masks": [[-100, -100, 9], [-100, 7]]}, "masks[1]"),
        ({"scores": [1.0]}, "scores"),
        ({"scores": [1.0, float("nan")]}, "scores[1]"),
        ({"inference_logprobs": [[1.0, 1.0, -0.2], [1.0, -1.5]]}, "inference_logprobs[1]"),
        (
            {"inference_logprobs": [[1.0, float("inf"), -0.2], [1.0, 1.0, -1.5]]},
            "inference_logprobs[0][1]",
        ),
        (
            {"inference_logprobs": [[1.0, 1.0, -0.2], [1.0, 1.0, 0.5]]},
            "inference_logprobs[1][2]",
        ),
        ({"versions": [[-1, -1, 3]]}, "versions"),
        ({"ref_logprobs": [[0.0] * 3, [0.0] * 4]}, "ref_logprobs[1]"),
        (
            {"messages": [[{"role": "user", "content": "a"}], [{"role": "user"}]]},
            "messages[1][0]",
        ),
        ({"finish_reasons": ["stop"]}, "finish_reasons"),
        ({"outcomes": ["ok"]}, "outcomes"),
    ],
)
def test_a_validation_error_names_the_field_and_the_index(
    changes: dict[str, object], place: str
) -> None:
    with pytest.raises(InvalidGroup) as refusal:
        from_group(group(**changes))
    assert str(refusal.value).startswith(f"{place}:")


def test_advantages_of_another_length_are_accepted_because_old_clients_send_them() -> None:
    from_group(group(advantages=[[1.0], [0.5]]))


def test_null_content_and_unknown_keys_in_messages_are_kept() -> None:
    turn = {"role": "tool", "content": None, "reward": 0.5}
    from_group(group(messages=[[turn], [turn]]))
