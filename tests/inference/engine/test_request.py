"""Requests, their sequences and text that arrives token by token."""

from __future__ import annotations

import pytest

from atroposlib.inference.engine.request import (
    FinishReason,
    Output,
    SequenceState,
    TextStream,
    VersionSpan,
)
from tests.inference.helpers import request


class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8."""

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(tokens).decode(errors="replace")


def test_a_character_of_two_bytes_is_emitted_with_its_second_byte():
    stream = TextStream(Bytes())
    assert [stream.push(token) for token in "aé".encode()] == ["a", "", "é"]
    assert stream.text == "aé"


def test_text_that_may_begin_a_stop_string_is_held_back():
    stream = TextStream(Bytes(), ("xyz",))
    assert [stream.push(token) for token in b"abxq"] == ["", "", "a", "b"]
    assert stream.text == "abxq"


def test_a_stop_string_ends_the_text_before_it():
    stream = TextStream(Bytes(), ("END", "."))
    pieces = [stream.push(token) for token in b"ok END"]
    assert stream.stopped and stream.text == "ok " == "".join(pieces)


def test_each_span_of_versions_ends_where_the_next_begins():
    sequence = SequenceState(request=request([5]), index=0, seed=0)
    sequence.begin_version(0, 0)
    sequence.begin_version(1, 3)
    sequence.begin_version(2, 3)  # version 1 sampled no token
    assert sequence.version_spans(5) == [VersionSpan(0, 0, 3), VersionSpan(2, 3, 5)]
    assert sequence.version_spans(3) == [VersionSpan(0, 0, 3)]


def test_a_request_resolves_with_its_last_output_in_index_order():
    one = request([5], n=2)
    first, second = (Output([i], [0.0], FinishReason.STOP, [], []) for i in range(2))
    one.deliver(1, second)
    assert not one.future.done()
    one.deliver(0, first)
    assert one.future.result(0).outputs == [first, second]


@pytest.mark.parametrize(("max_tokens", "sequences"), [(0, 0), (1, 3)])
def test_a_request_without_tokens_has_no_sequences(max_tokens, sequences):
    assert request([5], n=3, max_tokens=max_tokens).num_sequences == sequences
