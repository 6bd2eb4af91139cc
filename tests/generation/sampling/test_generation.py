"""Sampling parameters of a token request, and versions of its tokens."""

from __future__ import annotations

import pytest

from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.sampling.generation import (
    NEUTRAL,
    UNKNOWN_VERSION,
    Generation,
    sampling_params,
    span_sampling,
    token_versions,
    went_back,
    with_configured,
    with_version,
)
from atroposlib.generation.sessions.sequences import extend_node, sampled_part


def test_version_spans_assign_every_token_its_sampling_version() -> None:
    spans = [{"version": "3", "start": 0, "end": 2}, {"version": 4, "start": 2, "end": 9}]
    assert token_versions(4, spans, None) == [3, 3, 4, 4]
    assert token_versions(2, [{"version": 5, "start": 1, "end": 2}], "base") == [-1, 5]
    assert UNKNOWN_VERSION == -1


def test_the_sampling_defaults_of_a_model_are_overridden() -> None:
    params = sampling_params({"input_ids": [1], "model": "m", "stop": None, "seed": 3})
    assert params == {"n": 1, "max_tokens": 1024, "seed": 3, **NEUTRAL}
    unset = {name: None for name in NEUTRAL}
    assert sampling_params({**unset, "extra_body": unset}) == {
        "n": 1,
        "max_tokens": 1024,
        **NEUTRAL,
    }


def test_the_sampling_of_a_span_names_what_changes_the_distribution() -> None:
    assert span_sampling({"prompt": "a", "max_tokens": 4}) == {"temperature": 1.0}
    neutral = {"top_p": 1, "top_k": -1, "min_p": 0.0, "temperature": None}
    assert span_sampling(neutral) == {"temperature": 1.0}
    assert span_sampling({"top_k": 0, "temperature": 0}) == {"temperature": 0.0}
    asked = {"temperature": 0.7, "top_p": 0.95, "extra_body": {"top_k": 20, "min_p": 0.1}}
    expected = {"temperature": 0.7, "top_p": 0.95, "top_k": 20, "min_p": 0.1}
    assert span_sampling(asked) == expected


@pytest.mark.parametrize(
    ("asked", "recorded"),
    [
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"presence_penalty": -0.5}, {"presence_penalty": -0.5}),
        ({"extra_body": {"frequency_penalty": 0.1}}, {"frequency_penalty": 0.1}),
        ({"repetition_penalty": 1, "presence_penalty": 0, "min_p": None}, {}),
        ({"logit_bias": {"5": -100}}, {"constraints": ["logit_bias"]}),
        ({"logit_bias": {}, "min_tokens": 0, "bad_words": []}, {}),
        ({"min_tokens": 4, "bad_words": ["no"]}, {"constraints": ["bad_words", "min_tokens"]}),
        ({"extra_body": {"guided_regex": "[0-9]+"}}, {"constraints": ["guided_regex"]}),
        ({"response_format": {"type": "text"}}, {}),
        (
            {"response_format": {"type": "json_object"}},
            {"constraints": ["response_format"]},
        ),
        ({"seed": 3, "stop": ["a"], "return_token_ids": True, "n": 4}, {}),
    ],
)
def test_a_span_names_penalties_and_constraints(asked, recorded) -> None:
    assert span_sampling(asked) == {"temperature": 1.0, **recorded}


def test_a_row_keeps_the_sampling_of_its_calls() -> None:
    asked = {"temperature": 0.5, "repetition_penalty": 1.1, "bad_words": ["no"]}
    output = Generation(
        prompt_ids=[1],
        tokens=[2],
        logprobs=[-1.0],
        versions=[3],
        finish_reason="stop",
        sampling=span_sampling(asked),
    )
    node = extend_node(None, output, "ab")
    assert node.spans[0]["repetition_penalty"] == 1.1
    assert sampled_part(node, 1).sampling == span_sampling(asked)


def test_an_announced_version_fills_unknown_versions() -> None:
    output = Generation(
        prompt_ids=[1],
        tokens=[2, 3, 4],
        logprobs=[-1.0] * 3,
        versions=[-1, 7, -1],
        finish_reason="stop",
    )
    assert with_version(output, 5).versions == [5, 7, 5]
    assert with_version(output, None).versions == [-1, 7, -1]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"stop": None}, {"max_tokens": 8, "top_p": 0.9}),
        ({"top_p": 1.0, "max_tokens": 4}, {"max_tokens": 4, "top_p": 1.0}),
        ({"max_completion_tokens": 99, "n": 2}, {"max_tokens": 8, "top_p": 0.9, "n": 2}),
        ({"split": "eval", "max_tokens": 99}, {"split": "eval", "max_tokens": 99}),
    ],
)
def test_configured_sampling_fills_in_and_its_limit_bounds(asked, found) -> None:
    config = APIServerConfig(sampling={"top_p": 0.9, "max_tokens": 8})
    assert with_configured(asked, config) == found


@pytest.mark.parametrize(
    ("reported", "newest", "announced", "back"),
    [
        (0, 31, 31, True),  # started again with its first weights
        (UNKNOWN_VERSION, 31, 31, True),  # the same, of an engine that forgot the label
        (31, 31, 31, False),
        (32, 31, 31, False),  # published, and not announced yet
        (30, 31, 30, False),  # the trainer went back, and published that
        (30, 30, 31, False),  # the answer began before the publish
        (0, 0, 31, False),  # a judge
        (0, 31, None, False),  # no trainer that announces
    ],
)
def test_only_a_server_with_older_weights_than_before_and_than_published_went_back(
    reported, newest, announced, back
):
    assert went_back(reported, newest, announced) is back
