"""Which tokens a top-entropy mask keeps."""

from __future__ import annotations

from hypothesis import given, strategies as st

from example_trainer.update.top_entropy import keep_top

NAN = float("nan")


def test_the_share_is_of_all_rows_together_and_at_least_one_token_stays():
    entropies = [[0.1, 2.0], [0.3, 1.0, 0.0]]
    assert (
        keep_top(entropies, 0.2) == keep_top(entropies, 0.01) == [[False, True], [False] * 3]
    )
    assert keep_top(entropies, 1.0) == [[True] * 2, [True] * 3]
    assert keep_top([[], []], 0.2) == [[], []]


def test_equal_entropies_are_kept_together_and_a_nan_is_kept():
    assert keep_top([[1.0, 1.0, 0.5]], 0.3) == [[True, True, False]]
    assert keep_top([[NAN, 1.0, 0.5]], 0.5) == [[True, True, False]]
    # The first tokens of two rows of a group, scored in separate passes.
    assert keep_top([[5.474166, 0.1], [5.474165, 0.2]], 0.25) == [[True, False]] * 2


def test_a_share_of_a_hundred_tokens_is_its_percentage():
    flags = keep_top([[float(i) for i in range(100)]], 0.55)  # 55.00000000000001 in floats
    assert sum(flags[0]) == 55


@given(st.lists(st.lists(st.floats(0, 10), max_size=5), max_size=5), st.floats(0.01, 1.0))
def test_no_token_left_out_has_more_entropy_than_one_that_is_kept(entropies, share):
    flags = keep_top(entropies, share)
    pairs = [pair for row, of in zip(entropies, flags) for pair in zip(row, of)]
    stay, leave = [x for x, on in pairs if on], [x for x, on in pairs if not on]
    assert len(stay) >= share * len(pairs) - 1e-9
    assert not leave or max(leave) < min(stay)
