"""SamplingRequest and SamplingResponse: fields, messages, tools, ids, stop strings."""

from __future__ import annotations

import msgspec
import pytest

from atroposlib.errors import InferenceRefused
from atroposlib.generation.proxy.apis.exchange import (
    SamplingRequest,
    bare_id,
    finish_reason_of,
    function_tools,
    new_id,
    parse_body,
    plain_messages,
    reject_formats,
    sampling_of,
)


class Body(msgspec.Struct):
    messages: list[str]
    n: int | None = None


def test_an_invalid_field_is_reported_without_its_value():
    with pytest.raises(InferenceRefused, match=r"\$\.messages") as error:
        parse_body({"messages": "secret"}, Body)
    assert "secret" not in str(error.value)


def test_unknown_fields_are_sampling_parameters_and_protocol_fields_are_not():
    raw = {"messages": [], "n": 3, "top_k": 5, "user": "u", "extra_body": {"min_p": 0.1}}
    assert sampling_of(raw, Body, max_tokens=7) == {
        "top_k": 5,
        "min_p": 0.1,
        "n": 3,
        "temperature": 1.0,
        "max_tokens": 7,
    }


@pytest.mark.parametrize("n", [0, 129])
def test_the_number_of_choices_is_bounded(n):
    with pytest.raises(InferenceRefused, match="n: 1 to 128"):
        sampling_of({"n": n}, Body, max_tokens=None)


def test_messages_keep_only_the_fields_of_chat_templates():
    developer = {"role": "developer", "content": "be brief", "refusal": None, "audio": "x"}
    assert plain_messages([developer]) == [{"role": "system", "content": "be brief"}]
    with pytest.raises(InferenceRefused, match="at least one"):
        plain_messages([])
    with pytest.raises(InferenceRefused, match=r"messages\[0\]: a role"):
        plain_messages([{"content": "hello"}])


def test_only_tools_of_type_function_are_accepted():
    function = {"type": "function", "function": {"name": "add"}}
    assert function_tools([function]) == [function]
    assert function_tools([]) is None
    with pytest.raises(InferenceRefused, match=r"tools\[1\]: a tool of type web_search"):
        function_tools([function, {"type": "web_search"}])
    with pytest.raises(InferenceRefused, match=r"tools\[0\]\.function\.name"):
        function_tools([{"type": "function", "function": {}}])


def test_a_format_that_needs_constrained_decoding_is_rejected():
    reject_formats(None)
    reject_formats({"type": "text"})
    with pytest.raises(InferenceRefused, match="json_object needs constrained decoding"):
        reject_formats({"type": "json_object"})


def test_request_keywords_are_those_of_the_call():
    text = SamplingRequest(prompt="once", stop=["."], sampling={"n": 1})
    assert text.keywords() == {"n": 1, "prompt": "once", "stop": ["."]}
    chat = SamplingRequest(messages=[{"role": "user", "content": "hi"}], tools=[])
    assert chat.keywords() == {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("prefix", ["", "chatcmpl-", "cmpl-", "msg_", "resp_"])
def test_the_response_id_is_the_same_under_the_prefix_of_every_api(prefix):
    made = new_id()
    assert len(made) == 12
    assert bare_id(prefix + made) == made


def test_an_aborted_generation_is_reported_as_cut_off():
    assert [finish_reason_of(reason) for reason in ("abort", "stop", None)] == [
        "length",
        "stop",
        "stop",
    ]
