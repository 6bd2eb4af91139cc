"""Temperatures, logprob kinds and images of groups: what is scored how, compared, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from atroposlib.errors import InvalidGroup
from example_trainer.data.rows import newest_version, to_rows
from example_trainer.data.sampling import (
    NO_TEMPERATURE,
    TRUNCATED,
    at_temperature,
    comparable_versions,
)
from tests.trainer.rows import at, row, scored


def span(start, end, temperature=1.0, **more):
    return {"start": start, "end": end, "temperature": temperature, **more}


def rows_of(*spans, tokens=(1, 2, 3, 4, 5), masks=None, unknown="warn", **fields):
    group = scored([list(tokens)], 2, [1.0], sampling=[list(spans)], **fields)
    if masks is not None:
        group.masks = [masks]
    return to_rows([group], 64, unknown_temperature=unknown)


def test_every_call_of_a_row_has_its_temperature():
    batch = rows_of(span(2, 3, 0.5), span(3, 4, 0.0), span(4, 5, 1.5))
    (found,) = batch.rows
    assert found.temperatures == [1.0, 0.5, 1.0, 1.5]  # greedy logprobs are those at 1
    assert found.trained_temperatures == [0.5, 1.0, 1.5]
    assert found.names_temperature and batch.notes == set()


def test_a_span_counts_more_than_what_the_group_names():
    (found,) = rows_of(
        span(3, 5, 0.5),
        generation_params={"temperature": 0.7},
        overrides=[{"temperature": 0.9}],
    ).rows
    assert found.trained_temperatures == [0.9, 0.5, 0.5]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "hot", [0.7]])
@pytest.mark.parametrize("source", ["overrides", "generation_params", "group_overrides"])
def test_a_temperature_that_is_no_number_from_0_on_is_refused_with_its_environment(
    source, value
):
    named = [{"temperature": value}] if source == "overrides" else {"temperature": value}
    with pytest.raises(InvalidGroup, match=rf"{source}.* of environment maths: temperature"):
        rows_of(metadata={"env": "maths"}, **{source: named})


def test_rows_without_a_temperature_are_warned_of_assumed_or_refused():
    for spans in ((), (span(2, 4, 0.5),)):  # none, and not of every trained token
        batch = rows_of(*spans)
        assert batch.notes == {NO_TEMPERATURE}
        assert batch.counts["rows_without_temperature"] == 1
        assert not batch.rows[0].names_temperature
        assert rows_of(*spans, unknown="assume_1").notes == set()
        with pytest.raises(InvalidGroup, match="refuse"):
            rows_of(*spans, unknown="refuse")
    assert rows_of(span(2, 5), unknown="refuse").notes == set()
    untrained = [-100] * 5
    assert rows_of(masks=untrained, unknown="refuse").counts["rows_without_temperature"] == 0


def test_text_without_a_sampler_needs_no_temperature():
    group = scored([[1, 2, 3]], 1, [1.0])
    batch = to_rows([group], 64, needs_sampler=False, unknown_temperature="refuse")
    assert batch.notes == set()


def test_logprobs_before_the_temperature_are_refused_unless_it_is_1():
    assert rows_of(span(2, 5, 1.0, logprobs="raw")).notes == set()
    with pytest.raises(
        InvalidGroup, match="temperature 0.7 and the logprobs before it.*processed_logprobs"
    ):
        rows_of(span(2, 5, 0.7, logprobs="raw"))


def test_logprobs_after_a_truncation_are_trained_and_not_compared():
    batch = rows_of(
        span(2, 3, 0.7, top_p=0.9, logprobs="truncated"),
        span(3, 4, 0.7, top_p=0.9, logprobs="scaled"),
        span(4, 5, 0.7, logprobs="truncated"),  # nothing was cut off
        versions=[[-1, -1, 8, 7, 6]],
    )
    (found,) = batch.rows
    assert batch.notes == {TRUNCATED} and found.trained == [1, 2, 3]
    assert found.comparable_versions == [-1, 7, 6]
    assert newest_version([found]) == 7
    assert newest_version([row([1], [2, 3], versions=[-1, -1])]) is None


@pytest.mark.parametrize(
    "more, named",
    [
        ({"repetition_penalty": 1.1}, "repetition_penalty 1.1"),
        ({"presence_penalty": -1.0}, "presence_penalty -1"),
        ({"frequency_penalty": 0.2, "constraints": ["bad_words"]}, "bad_words, frequency"),
        ({"constraints": ["logit_bias"]}, "logit_bias"),
    ],
)
def test_tokens_under_a_penalty_or_constraint_are_trained_and_not_compared(more, named):
    batch = rows_of(
        span(2, 3, **more, logprobs="scaled"), span(3, 5), versions=[[-1, -1, 8, 7, 6]]
    )
    (found,) = batch.rows
    (note,) = batch.notes
    assert note.startswith(f"tokens were sampled with {named}")
    assert found.trained == [1, 2, 3] and found.comparable_versions == [-1, 7, 6]
    with pytest.raises(InvalidGroup, match="the logprobs before it.*processed_logprobs"):
        rows_of(span(2, 5, **more, logprobs="raw"))


def test_neutral_penalties_change_nothing():
    neutral = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "constraints": []}
    batch = rows_of(span(2, 5, **neutral, logprobs="raw"), versions=[[-1, -1, 8, 7, 6]])
    assert batch.notes == set() and batch.rows[0].comparable_versions == [8, 7, 6]


def test_groups_with_images_are_left_out_counted_and_named():
    plain = scored([[1, 2], [1, 3]], 1, [1.0, 0.0])
    with_images = [
        scored([[1, 2], [1, 3]], 1, [1.0, 0.0], images=images)
        for images in (["aGk="], [["aGk="], None], [[], [{"url": "a"}]])
    ]
    batch = to_rows([plain, *with_images], 64)
    assert len(batch.rows) == 2 and batch.counts["dropped_images"] == 6
    assert any("images" in note for note in batch.notes)
    for images in (None, [], [None, None], [[], []]):
        assert len(to_rows([scored([[1, 2]], 1, [1.0], images=images)], 64).rows) == 1


cuts = st.lists(st.integers(0, 6), min_size=2, max_size=8).map(sorted)


@given(cuts, st.data())
def test_exactly_the_tokens_of_truncated_spans_lose_their_version(ends, data):
    spans, expected = [], [5] * 6  # labels of tokens 1 .. 6
    for start, end in zip(ends[::2], ends[1::2]):
        truncated = data.draw(st.booleans())
        kind = (
            {"logprobs": "truncated", "top_k": 3} if truncated else {"logprobs": "truncated"}
        )
        spans.append(span(start, end, **kind))
        for t in range(max(1, start), end) if truncated else ():
            expected[t - 1] = -1
    assert comparable_versions([5] * 6, spans) == expected


@given(st.floats(0.1, 2.0))
def test_a_row_at_one_temperature_has_it_at_every_token(temperature):
    assert set(at(temperature, row([1, 2], [3, 4])).trained_temperatures) == {temperature}


def test_the_temperature_of_an_algorithm_is_that_of_rows_that_name_none():
    group = scored([[1, 2, 3], [1, 2, 4]], 1, [1.0, 0.0])
    [first, second] = to_rows([at_temperature(group, 0.5)], 9).rows
    assert first.temperatures == second.temperatures == [0.5, 0.5] and first.names_temperature
    assert at_temperature(group, None) is group and group.generation_params is None


@pytest.mark.parametrize(
    "named",
    [
        {"sampling": [[span(1, 3, 0.7)]]},
        {"generation_params": {"temperature": 0.7}},
        {"overrides": [{"temperature": 0.7}]},
    ],
)
def test_a_row_at_another_temperature_than_its_algorithm_is_refused(named):
    group = scored([[1, 2, 3]], 1, [1.0], metadata={"env": "tools"}, **named)
    assert to_rows([at_temperature(group, 0.7)], 9).rows[0].trained_temperatures == [0.7, 0.7]
    with pytest.raises(
        InvalidGroup, match="environment tools.*0.7, and its algorithm names 0.5"
    ):
        at_temperature(group, 0.5)
