"""Sampling keywords and messages of a function environment are checked before they are sent."""

from __future__ import annotations

import pytest

from atroposlib.envs.function_env.call_checks import (
    SAMPLING,
    checked_messages,
    require_sampling,
)
from atroposlib.errors import ConfigError


@pytest.mark.parametrize(
    "word, meant",
    [
        ("max_token", "max_tokens"),
        ("temprature", "temperature"),
        ("top_pp", "top_p"),
        ("stopp", "stop"),
        ("max_length", ""),
    ],
)
def test_an_unknown_keyword_is_refused_with_the_nearest_one(word, meant):
    with pytest.raises(ConfigError) as refused:
        require_sampling([word])
    assert str(refused.value).startswith(f"{word} is no sampling parameter")
    assert (f"did you mean {meant}?" in str(refused.value)) == bool(meant)
    assert f"extra_body={{'{word}': ...}}" in str(refused.value)


def test_the_parameters_of_the_local_server_and_of_openai_are_known():
    from openai.types.chat import completion_create_params

    from atroposlib.inference.http.protocol import SamplingFields

    theirs = set(completion_create_params.CompletionCreateParamsBase.__annotations__)
    sampling = {"temperature", "top_p", "max_tokens", "stop", "seed", "logit_bias", "tools"}
    assert sampling <= theirs & SAMPLING
    require_sampling(set(SamplingFields.model_fields) - {"suffix", "return_token_ids"})


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
    ],
)
def test_whole_messages_are_copied(message):
    (copy,) = checked_messages([message])
    assert copy == message and copy is not message


@pytest.mark.parametrize(
    "messages, sentence",
    [
        ({"role": "user", "content": "hi"}, "a list of messages or a text"),
        (["hi"], r"messages\[0\] is a text"),
        (
            [{"role": "usr", "content": "hi"}],
            r"messages\[0\] has role 'usr'; did you mean user",
        ),
        (
            [{"content": "hi"}],
            "has the keys content; a role is one of system, developer, user",
        ),
        (
            [{"role": "user", "contnt": "hi"}],
            "has the keys role, contnt: a message needs content",
        ),
        ([{"role": "user", "content": None}], "a message needs content, or tool_calls"),
    ],
)
def test_a_message_that_would_be_an_empty_prompt_is_refused(messages, sentence):
    with pytest.raises(ConfigError, match=sentence):
        checked_messages(messages)
