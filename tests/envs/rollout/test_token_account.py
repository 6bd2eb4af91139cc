"""The account of an environment: every returned token is in exactly one end state."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from atroposlib.envs.rollout.token_account import (
    RowCount,
    Tally,
    TokenAccount,
    end_group,
    fold_versions,
    rollout_ends,
    rows_of_group,
    sample_tally,
)
from atroposlib.generation.engines.returned import ReturnedTokens, token_receiver
from atroposlib.wire import EnvIdentifier
from atroposlib.wire.status import (
    StateCount,
)

WHO = EnvIdentifier(env_id=1, run_id="r")


def returned(tokens, version=2, split="train", server=None, discarded=""):
    token_receiver.get()(ReturnedTokens(server, split, tokens, version, discarded))


def total(account):
    """Tokens of all states, without those that no server returned."""
    counts = account.counts().items()
    return sum(-c.tokens if state == "supplied" else c.tokens for (_, state), c in counts)


def test_a_rollout_with_a_failed_sample_and_a_posted_row():
    account = TokenAccount()
    with account.count_replies(), account.rollout():
        with sample_tally() as sample:
            returned(10)
            sample.fail("env_error")
        with sample_tally() as sample:
            returned(20, version=1)
            sample.keep()
        assert account.counts()[1, "in_flight"] == StateCount(20, 1)
        end_group("posted", [RowCount(1, 15)])
    assert account.counts() == {
        (2, "dropped/env_error"): StateCount(10, 1),
        (1, "posted"): StateCount(15, 1),
        (1, "masked"): StateCount(5, 0),
    }


def test_more_trained_tokens_than_returned_are_supplied_by_the_environment():
    tally = Tally(tokens=4, samples=1, version=3)
    account = TokenAccount()
    with account.count_replies(), account.rollout():
        returned(4, version=3)
        end_group("posted", [RowCount(3, 10)])
    assert account.counts() == {
        (3, "posted"): StateCount(10, 1),
        (3, "supplied"): StateCount(6, 0),
    }
    assert rollout_ends(tally, "dropped/no_group") == {
        (3, "dropped/no_group"): StateCount(4, 1)
    }


def test_calls_outside_of_samples_have_states_of_their_own():
    account = TokenAccount(lambda server: server == "policy")
    with account.count_replies():
        returned(1, server="judge")
        returned(2, server="policy")
        returned(3, split="eval", server="policy")
        returned(4, discarded="old_weights")
        with account.count_evaluation():
            returned(5, server="policy")
        with account.rollout():
            late = token_receiver.get()
        late(ReturnedTokens(None, "train", 6, 2))
    assert {key: count.tokens for key, count in account.counts().items()} == {
        (-1, "helper"): 1,
        (2, "helper"): 2,
        (2, "evaluated"): 3 + 5,
        (2, "discarded/old_weights"): 4,
        (2, "discarded/late"): 6,
    }
    assert account.returned == total(account) == 21


def test_a_report_is_sent_when_something_changed_and_again_while_samples_are_open():
    account = TokenAccount()
    account.begin_run("r")
    assert account.report(WHO, 0.0) is None
    with account.count_replies(), account.rollout():
        returned(5)
        first = account.report(WHO, 0.0)
        assert [(c.state, c.tokens) for c in first.counts] == [("in_flight", 5)]
        assert account.report(WHO, 11.0) is None
        assert account.report(WHO, 31.0).sequence == 2
        returned(1)
        assert account.report(WHO, 35.0) is None
        assert account.report(WHO, 42.0).counts[0].tokens == 6
        account.report_again()
        assert account.report(WHO, 42.0) is not None
    last = account.report(WHO, 43.0, ended=True)
    assert last.ended and last.counts[0].state == "dropped/no_group"
    account.begin_run("another")
    assert account.counts() == {} and account.instance != last.instance


def test_samples_of_a_journal_move_and_are_taken_over():
    account = TokenAccount()
    account.take_over(3, 40, 4)
    account.journal(3, 40, 4)
    account.journal(3, -10, -1)
    assert account.counts() == {
        (3, "recovered"): StateCount(40, 4),
        (3, "journalled"): StateCount(30, 3),
    }


def test_old_versions_are_reported_together():
    counts = {(v, "posted"): StateCount(v, 1) for v in range(-1, 5)}
    assert fold_versions(counts, 2) == {
        (-1, "posted"): StateCount(-1, 1),
        (-2, "posted"): StateCount(0 + 1 + 2, 3),
        (3, "posted"): StateCount(3, 1),
        (4, "posted"): StateCount(4, 1),
    }


@pytest.mark.parametrize("odd", [None, {}, {"tokens": 3}, {"tokens": [[1]], "masks": [3]}])
def test_a_group_of_another_form_has_no_rows(odd):
    assert rows_of_group(odd) == []


def test_rows_of_a_group_have_their_oldest_sampled_version():
    group = {
        "tokens": [[1, 5, 6], [1, 7]],
        "masks": [[-100, 5, 6], [-100, 7]],
        "versions": [[-1, 4, 3], [-1, -1]],
    }
    assert rows_of_group(group) == [RowCount(3, 2), RowCount(-1, 1)]


SAMPLES = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from(["keep", "env_error", "raise"])), max_size=4
)
ENDS = st.lists(
    st.tuples(
        st.sampled_from(["posted", "dropped/short", "dropped/refused"]),
        st.lists(st.integers(0, 60), max_size=3),
    ),
    max_size=3,
)


@given(st.lists(st.tuples(SAMPLES, ENDS), max_size=5))
def test_any_sequence_of_draws_drops_and_posts_balances(rollouts):
    account = TokenAccount()
    with account.count_replies():
        for samples, ends in rollouts:
            with account.rollout():
                for tokens, end in samples:
                    _draw(tokens, end)
                    assert account.returned == total(account)
                for state, rows in ends:
                    end_group(state, [RowCount(1, tokens) for tokens in rows])
            assert account.returned == total(account)
    assert all(count.tokens >= 0 for count in account.counts().values())


def _draw(tokens, end):
    try:
        with sample_tally() as sample:
            returned(tokens)
            if end == "keep":
                sample.keep()
            elif end == "raise":
                raise RuntimeError("cancelled")
            else:
                sample.fail(end)
    except RuntimeError:
        pass
