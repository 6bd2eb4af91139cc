"""Response bodies of the fake inference server, filled by hand."""

from __future__ import annotations

from atroposlib.testing.fake_shapes import (
    END,
    FakeResponse,
    Sampled,
    chat,
    completions,
    decode,
    demo,
    encode,
    fake_logprob,
    prompt_logprobs,
    sglang,
    trl,
    visible,
)

PROMPT = encode("<|user|>hi<|end|>")
RESPONSE = FakeResponse(
    PROMPT,
    [Sampled([*encode("ok"), END], "stop", "ok", 3), Sampled(encode("o"), "length", "o")],
)


def test_role_markers_are_single_tokens_and_invisible():
    assert len(PROMPT) == 4
    assert decode(PROMPT) == "<|user|>hi<|end|>"
    assert visible(PROMPT) == "hi"


def test_logprobs_are_eighths_from_one_to_seven():
    assert [fake_logprob(token) for token in (0, 1, 6, 7)] == [-0.125, -0.25, -0.875, -0.125]


def test_prompt_logprobs_begin_with_none_and_hold_the_k_likeliest():
    assert prompt_logprobs([5, 6], None) is None
    first, second = prompt_logprobs([5, 6], 2)
    assert first is None
    assert list(second) == ["6", "0", "1"]


def test_usage_counts_prompt_and_sampled_tokens():
    usage = {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8}
    assert RESPONSE.usage == usage
    assert chat(RESPONSE, {})["usage"] == usage


def test_the_demo_route_returns_ids_logprobs_and_versions():
    reply = demo(RESPONSE, {})
    assert reply["token_ids"] == [[*encode("ok"), END], encode("o")]
    assert reply["finish_reasons"] == ["stop", "length"]
    assert reply["weight_versions"][0] == [{"version": 3, "start": 0, "end": 3}]
    assert "logprobs" not in demo(FakeResponse(PROMPT, [], has_logprobs=False), {})


def test_sglang_returns_a_list_only_for_several_choices():
    assert len(sglang(RESPONSE, {})) == 2
    one = sglang(FakeResponse(PROMPT, RESPONSE.choices[:1]), {"return_logprob": True})
    assert one["meta_info"]["weight_version"] == "3"
    assert [token for _, token, _ in one["meta_info"]["output_token_logprobs"]] == (
        one["output_ids"]
    )


def test_an_old_trl_server_returns_completion_ids_only():
    assert set(trl(RESPONSE, {}, since_logprobs=False)) == {"completion_ids"}
    assert trl(RESPONSE, {}, since_logprobs=True)["prompt_ids"] == [PROMPT]


def test_completions_add_token_ids_on_request():
    plain, extended = (
        completions(RESPONSE, body) for body in ({}, {"return_token_ids": True})
    )
    assert "token_ids" not in plain["choices"][0]
    assert extended["choices"][1]["token_ids"] == encode("o")
