"""The group record: valid groups and validation errors."""

from __future__ import annotations

import msgspec
import pytest

from atroposlib.errors import InvalidGroup
from atroposlib.wire import ScoredData, validate_group


def group(**changes: object) -> ScoredData:
    fields: dict[str, object] = {
        "tokens": [[1, 5, 9], [1, 5, 7]],
        "masks": [[-100, -100, 9], [-100, -100, 7]],
        "scores": [1.0, 0.0],
        "inference_logprobs": [[1.0, 1.0, -0.2], [1.0, 1.0, -1.5]],
        "versions": [[-1, -1, 3], [-1, -1, 3]],
    }
    return ScoredData(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_group_that_follows_the_record_is_accepted() -> None:
    validate_group(group())


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"tokens": [], "masks": [], "scores": []}, "tokens"),
        ({"tokens": [[1, 5, 9], []], "masks": [[-100, -100, 9], []]}, "tokens[1]"),
        ({"tokens": [[1, 5, -9], [1, 5, 7]]}, "tokens[0]"),
        ({"tokens": [[1, 5, 9], [1, 5, 2**31]]}, "tokens[1]"),
        ({"masks": [[-100, -100, 9]]}, "masks"),
        ({"masks": [[-100, -100, 9], [-100, 7]]}, "masks[1]"),
        ({"scores": [1.0]}, "scores"),
        ({"scores": [1.0, float("nan")]}, "scores[1]"),
        ({"inference_logprobs": [[1.0, 1.0, -0.2], [1.0, -1.5]]}, "inference_logprobs[1]"),
        (
            {"inference_logprobs": [[1.0, float("inf"), -0.2], [1.0, 1.0, -1.5]]},
            "inference_logprobs[0][1]",
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
        validate_group(group(**changes))
    assert str(refusal.value).startswith(f"{place}:")


def test_advantages_of_another_length_are_accepted_because_old_clients_send_them() -> None:
    validate_group(group(advantages=[[1.0], [0.5]]))


def test_null_content_and_unknown_keys_in_messages_are_kept() -> None:
    turn = {"role": "tool", "content": None, "reward": 0.5}
    validate_group(group(messages=[[turn], [turn]]))


def test_every_original_key_is_present_on_the_wire_even_when_it_is_null() -> None:
    encoded = msgspec.json.decode(msgspec.json.encode(group()))
    assert encoded["ref_logprobs"] is None
    assert encoded["distill_token_ids"] is None
    assert encoded["group_overrides"] is None


def test_numbers_round_trip_exactly() -> None:
    original = group(inference_logprobs=[[1.0, 1.0, -0.1234567890123456], [1.0, 1.0, -1e-17]])
    assert msgspec.json.decode(msgspec.json.encode(original), type=ScoredData) == original
