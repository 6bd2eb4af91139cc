"""Fields of requests and the sampling parameters they become."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from atroposlib.errors import InferenceRefused
from atroposlib.inference.http.protocol import ChatRequest, PromptFields, UpdateFromGroup


class Body(PromptFields):
    default_max_tokens = 4


def params(top: int = 0, **fields):
    return Body(**fields, logprobs=top).sampling_params(context_left=10)


def test_max_tokens_is_the_request_s_or_the_default_and_at_most_the_context():
    assert params().max_tokens == 4
    assert params(max_tokens=7).max_tokens == 7
    assert params(max_tokens=7, max_completion_tokens=5).max_tokens == 5
    assert params(max_tokens=70).max_tokens == 10


def test_one_stop_string_is_a_list_of_one_and_top_k_minus_one_is_off():
    found = params(stop="END", top_k=-1, stop_token_ids=[3, 3])
    assert (found.stop, found.top_k, found.stop_token_ids) == (("END",), 0, frozenset({3}))


def test_token_ids_among_the_stop_strings_stop_too():
    found = params(stop=["END", 7], stop_token_ids=[3])
    assert (found.stop, found.stop_token_ids) == (("END",), frozenset({3, 7}))
    assert params(stop=7).stop_token_ids == frozenset({7})


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 0.1},
        {"logit_bias": {"5": 1.0}},
        {"best_of": 2},
        {"suffix": "x"},
        {"response_format": {"type": "json_object"}},
        {"guided_json": {"type": "object"}},
        {"guided_regex": "a+"},
        {"guided_choice": ["a"]},
        {"structured_outputs": {"json": {}}},
        {"bad_words": ["a"]},
        {"allowed_token_ids": [1]},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    ],
)
def test_a_setting_that_would_change_the_policy_is_rejected(fields):
    with pytest.raises(InferenceRefused, match=f"{next(iter(fields))}=.* is not supported"):
        params(**fields)


def test_neutral_values_of_such_settings_pass():
    assert params(min_p=0.0, logit_bias={}, n=2, best_of=2, repetition_penalty=1.0)
    assert params(response_format={"type": "text"}, tool_choice="auto", guided_json=None)


def test_more_than_twenty_top_logprobs_are_rejected():
    with pytest.raises(InferenceRefused, match="at most 20"):
        params(top=21)


def test_names_dtypes_and_shapes_have_one_entry_per_tensor():
    with pytest.raises(ValueError, match="one entry per tensor"):
        UpdateFromGroup(names=["a"], dtypes=[], shapes=[])


@pytest.mark.parametrize(
    "fields",
    [{"top_k": -2}, {"min_tokens": -1}, {"top_logprobs": -1}, {"top_k": 2**63}],
)
def test_a_number_out_of_its_bounds_is_refused(fields):
    with pytest.raises(ValidationError, match=next(iter(fields))):
        ChatRequest(messages=[{"role": "user", "content": "a"}], **fields)
