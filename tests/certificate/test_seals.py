"""Seals: every part of a sample changes its own digest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from atroposlib.certificate.seals import SpanSeal, score_seal, span_seal
from tests.examples import examples

SPAN = {"start": 2, "end": 4, "temperature": 0.7, "finish_reason": "stop"}
SAMPLE = (SPAN, [1, 2, 5, 6], [-0.25, -0.5], [3, 4])
EXPERTS = np.arange(12, dtype=np.int16).reshape(3, 2, 2)  # of the first 3 tokens


def sealed(
    span=SPAN, tokens=SAMPLE[1], logprobs=SAMPLE[2], versions=SAMPLE[3], experts=EXPERTS
):
    return span_seal("n", span, tokens, logprobs, versions, experts)


def differing(changed: SpanSeal) -> list[str]:
    return [
        name for name in SpanSeal._fields if getattr(changed, name) != getattr(sealed(), name)
    ]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"tokens": [1, 2, 5, 7]}, "tokens"),
        ({"tokens": [0, 2, 5, 6]}, "tokens"),
        ({"logprobs": [-0.25, -0.75]}, "logprobs"),
        ({"versions": [4, 4]}, "versions"),
        ({"span": {**SPAN, "top_k": 5}}, "settings"),
        ({"experts": EXPERTS + 1}, "routes"),
        ({"experts": EXPERTS[:, :1]}, "routes"),
    ],
)
def test_a_change_shows_in_the_digest_of_its_part(changes, part):
    assert differing(sealed(**changes)) == [part]


def test_experts_that_a_later_call_reports_do_not_break_the_seal():
    later = np.concatenate([EXPERTS, EXPERTS[:1]])
    assert sealed().routed_tokens == 1
    assert span_seal("n", *SAMPLE, later, sealed().routed_tokens) == sealed()


@examples(30)
@given(
    st.lists(st.floats(-100, 0, width=32), min_size=1, max_size=8),
    st.integers(0, 5),
    st.sampled_from([0, 1, 0.5, 1.0]),
)
def test_numbers_count_the_same_as_lists_as_arrays_and_as_json_integers(
    logprobs, at, temperature
):
    end = at + len(logprobs)
    span = {"start": at, "end": end, "temperature": temperature}
    as_float = {**span, "temperature": float(temperature)}
    tokens, versions = list(range(end)), [at] * len(logprobs)
    wide = (
        np.array(tokens, np.int64),
        np.array(logprobs, np.float64),
        np.array(versions, np.int64),
    )
    narrow = (
        np.array(tokens, np.int32),
        np.array(logprobs, np.float32),
        np.array(versions, np.int32),
    )
    seals = {span_seal("n", as_float, *numbers, None) for numbers in (wide, narrow)}
    assert seals == {span_seal("n", span, tokens, logprobs, versions, None)}


def test_a_seal_is_read_as_it_was_written():
    for seal in (sealed(), sealed(experts=None)):
        assert SpanSeal.parse(seal.text()) == seal
    assert [SpanSeal.parse(text) for text in (None, 3, "", "a.b", "a.b.c.d.e.f.g")] == [
        None
    ] * 5


def test_a_score_is_bound_to_its_tokens_outcome_code_and_task():
    facts = (1.0, "ok", [1, 2], "code", "task")
    others = (0.5, "truncated", [1, 3], "more code", None)
    seals = {score_seal(*facts)} | {
        score_seal(*facts[:i], other, *facts[i + 1 :]) for i, other in enumerate(others)
    }
    assert len(seals) == 6
