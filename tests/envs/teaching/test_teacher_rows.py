"""The rows of a teacher belong to exactly the trained tokens, behind any prompt."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from atroposlib.envs.teaching.teacher_rows import aligned_rows, answer_start, reading_of
from atroposlib.errors import InvalidGroup
from atroposlib.utils.tokenizers.vocabulary import VocabularyMap

N = 40
SAME = VocabularyMap({i: i for i in range(N)}, {i: i for i in range(N)})
# The teacher counts from the other end and has ten further tokens.
OTHER = VocabularyMap({i: 49 - i for i in range(N)}, {49 - i: i for i in range(N)})


def logprob(place, token):
    return -0.01 * (100 * place + token + 1)


def answer_of(tokens, top):
    """What a server returns: the token itself first, then ``top``; nothing at place 0."""
    rows = [list(dict.fromkeys([token, *top])) if t else [] for t, token in enumerate(tokens)]
    return {
        "prompt_tokens": list(tokens),
        "prompt_topk_token_ids": rows,
        "prompt_topk_logprobs": [[logprob(t, i) for i in row] for t, row in enumerate(rows)],
    }


@given(
    st.lists(st.tuples(st.integers(0, N - 1), st.booleans()), min_size=2, max_size=12),
    st.none() | st.lists(st.integers(0, N - 1), min_size=1, max_size=9),
    st.sampled_from([SAME, OTHER]),
)
def test_each_trained_token_has_the_entry_of_its_own_place(pairs, hint, vocabulary):
    tokens = [token for token, _ in pairs]
    mask = [token if is_trained else -100 for token, is_trained in pairs]
    mask[0] = -100
    start = answer_start(mask)
    reading = reading_of(tokens, mask, hint, vocabulary)
    read = tokens if hint is None else [*hint, *tokens[start:]]
    assert reading.tokens == vocabulary.ids_for_teacher(read)
    answer = answer_of(reading.tokens, top=[45, 20])
    ids, logprobs = aligned_rows(reading, tokens, mask, answer, vocabulary)
    assert len(ids) == len(logprobs) == len(tokens)
    for t, token in enumerate(tokens):
        if mask[t] == -100:
            assert ids[t] == logprobs[t] == []
            continue
        place = t if hint is None else len(hint) + t - start
        assert ids[t][0] == token and set(ids[t]) <= set(range(N))
        theirs = vocabulary.to_teacher[token]
        assert logprobs[t][0] == logprob(place, theirs)


def test_a_token_that_only_the_teacher_has_is_left_to_the_rest():
    reading = reading_of([1, 2], [-100, 2], None, OTHER)
    answer = answer_of(reading.tokens, top=[0, 5, 30])  # 0 and 5 are none of the student's
    ids, _ = aligned_rows(reading, [1, 2], [-100, 2], answer, OTHER)
    assert ids == [[], [2, 19]]


def test_turns_behind_the_first_answer_are_read_as_they_were():
    tokens, mask = [9, 1, 2, 8, 8, 3], [-100, 1, 2, -100, -100, 3]
    reading = reading_of(tokens, mask, [5, 5, 5], SAME)
    assert reading.tokens == [5, 5, 5, 1, 2, 8, 8, 3] and reading.offset == 2
    ids, _ = aligned_rows(reading, tokens, mask, answer_of(reading.tokens, []), SAME)
    assert ids == [[], [1], [2], [], [], [3]]


def changed(answer, **fields):
    return {**answer, **fields}


def test_an_answer_that_does_not_fit_is_refused():
    tokens, mask = [1, 2, 3], [-100, 2, 3]
    reading = reading_of(tokens, mask, None, SAME)
    answer = answer_of(tokens, [])
    wrong = {
        "did not read the tokens": changed(answer, prompt_tokens=[2, 3]),
        "1 ids, 3 logprobs": changed(answer, prompt_topk_token_ids=[[]]),
        r"\[1\]: the teacher returned no logprob": changed(
            answer, prompt_topk_token_ids=[[], [7], [3]]
        ),
        r"\[2\]: its logprob is -inf": changed(
            answer, prompt_topk_logprobs=[[], [-1.0], [-float("inf")]]
        ),
    }
    for value in (0.7, float("nan"), float("inf")):
        wrong[rf"\[2\]: {value:g} of token 3 is no logprob"] = changed(
            answer, prompt_topk_logprobs=[[], [-1.0], [value]]
        )
    for problem, given_answer in wrong.items():
        with pytest.raises(InvalidGroup, match=problem):
            aligned_rows(reading, tokens, mask, given_answer, SAME)
    with pytest.raises(InvalidGroup, match="token 99 is none of the tokenizer's"):
        reading_of([1, 99], [-100, 99], None, SAME)


@pytest.mark.parametrize(
    ("entries", "is_enough"),
    [([3], False), ([3, 3, 3], False), ([3, 1], True), ([3, 1, 0], True), ([1, 0], False)],
)
def test_fewer_of_the_likeliest_tokens_than_asked_for_are_refused(entries, is_enough):
    tokens, mask = [2, 3], [-100, 3]
    answer = changed(
        answer_of(tokens, []),
        prompt_topk_token_ids=[[], entries],
        prompt_topk_logprobs=[[], [-1.0] * len(entries)],
    )
    reading = reading_of(tokens, mask, None, SAME)
    if is_enough:
        ids, _ = aligned_rows(reading, tokens, mask, answer, SAME, top_k=2)
        assert ids == [[], entries]
        return
    with pytest.raises(InvalidGroup, match="1 of the 2 likeliest tokens|of the sampled token"):
        aligned_rows(reading, tokens, mask, answer, SAME, top_k=2)


def test_a_vocabulary_smaller_than_top_k_is_returned_whole():
    tokens, mask = [2, 3], [-100, 3]
    reading = reading_of(tokens, mask, None, SAME)
    answer = answer_of(tokens, range(N))
    ids, _ = aligned_rows(reading, tokens, mask, answer, SAME, top_k=1000)
    assert sorted(ids[1]) == list(range(N))


def test_rounding_above_0_of_a_sure_token_is_0():
    tokens, mask = [2, 3], [-100, 3]
    reading = reading_of(tokens, mask, None, SAME)
    answer = changed(answer_of(tokens, []), prompt_topk_logprobs=[[], [1e-7]])
    assert aligned_rows(reading, tokens, mask, answer, SAME)[1] == [[], [0.0]]
