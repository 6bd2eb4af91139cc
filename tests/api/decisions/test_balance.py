"""The balance of a run by hand-computed values."""

from __future__ import annotations

import pytest

from atroposlib.api.common.run_record import ProcessAccount, RunRecord
from atroposlib.api.decisions import balance
from atroposlib.api.decisions.balance import (
    RowTotal,
    end_state,
    merge_accounts,
    run_account,
    with_report,
    with_server_count,
)
from atroposlib.wire.status import (
    AccountReport,
)


def process(*counts, at=100.0, ended=True, sequence=1, env="a"):
    return ProcessAccount(env=env, sequence=sequence, at=at, ended=ended, counts=counts)


def rows(state, tokens, samples=1, env="a", why=None, version=3, step=None):
    return RowTotal(env, version, step, state, why, tokens, samples)


def states(account):
    return {line.state: line.tokens for line in account.lines}


def test_posted_tokens_are_replaced_by_the_states_of_their_rows():
    one = process((3, "posted", 60, 6), (3, "masked", 5, 0), (3, "dropped/short", 35, 3))
    ledger = [
        rows("committed", 20, 2),
        rows("committed", 10, why="zero_advantage"),
        rows("leased", 10),
        rows("pending", 15),
        rows("dropped", 5),
    ]
    account = run_account([one], ledger, now=100.0)
    assert states(account) == {
        "dropped/short": 35,
        "trained": 20,
        "queued": 15,
        "leased": 10,
        "no_gradient": 10,
        "masked": 5,
        "dropped/queue": 5,
    }
    assert (account.generated, account.supplied, account.unknown) == (100, 0, 0)
    assert (account.useful, account.moving) == (0.2, 25)


def test_supplied_tokens_are_no_generated_ones():
    one = process((3, "posted", 30, 1), (3, "supplied", 10, 0))
    account = run_account([one], [rows("acked", 30)], now=100.0)
    assert (account.generated, account.supplied, account.trained) == (20, 10, 30)


def test_posted_tokens_that_no_row_holds_are_unknown_or_beyond_the_archive():
    one = process((3, "posted", 30, 3))
    ledger = [rows("committed", 10)]
    account = run_account([one], ledger, now=100.0)
    assert (account.unknown, account.generated) == (20, 30)
    account = run_account([one], ledger, now=100.0, freed=True)
    assert states(account)["dropped/beyond_the_archive"] == 20
    assert (account.unknown, account.generated) == (0, 30)


@pytest.mark.parametrize("now, state", [(110.0, "in_flight"), (161.0, balance.LOST)])
def test_open_tokens_of_a_silent_process_are_lost_but_for_rows_that_it_posted(now, state):
    killed = process((3, "in_flight", 50, 2), (3, "posted", 10, 1), ended=False)
    account = run_account([killed], [rows("pending", 30)], now)
    assert states(account) == {state: 30, "queued": 30}
    assert account.generated == 60


def test_tokens_that_only_servers_know_of_are_lost_with_their_process():
    killed = process((3, "in_flight", 50, 2), (3, "dropped/short", 10, 1), ended=False)
    account = with_server_count(run_account([killed], [], now=1000.0), 75)
    assert states(account) == {balance.LOST: 65, "dropped/short": 10}
    assert account.generated == 75
    assert with_server_count(account, 70) is account
    ended = with_server_count(run_account([process((3, "helper", 10, 0))], [], 0.0), 12)
    assert states(ended) == {"helper": 10, balance.LOST: 2}


def test_a_journal_that_was_taken_over_counts_once():
    killed = process((3, "journalled", 40, 4), ended=False)
    heir = process((3, "recovered", 40, 4), (3, "posted", 40, 4))
    account = run_account([killed, heir], [rows("committed", 40)], now=1000.0)
    assert (states(account), account.generated) == ({"trained": 40}, 40)


def test_lines_by_environment_version_and_step():
    one = process((2, "posted", 10, 1), (3, "posted", 5, 1), (-1, "helper", 2, 0))
    ledger = [rows("acked", 10, version=2, step=1), rows("acked", 5, step=2)]
    by = {
        name: run_account([one], ledger, 0.0, name).lines
        for name in ("env", "version", "step")
    }
    assert [(line.env, line.state, line.tokens) for line in by["env"]] == [
        ("a", "trained", 15),
        ("a", "helper", 2),
    ]
    assert [(line.version, line.tokens) for line in by["version"]] == [
        (2, 10),
        (3, 5),
        (-1, 2),
    ]
    assert [(line.step, line.tokens) for line in by["step"]] == [(1, 10), (2, 5), (None, 2)]


@pytest.mark.parametrize(
    "state, why, expected",
    [
        ("buffered", None, "queued"),
        ("dead", None, "dropped/dead_batch"),
        ("dropped", "reset", "dropped/reset"),
        ("acked", "too_long", "dropped/too_long"),
        (None, None, "queued"),
    ],
)
def test_states_of_rows(state, why, expected):
    assert end_state(state, why) == expected


def report(sequence, tokens):
    count = {"version": 1, "state": "posted", "tokens": tokens, "samples": 1}
    return AccountReport(env_id=0, instance="i", sequence=sequence, counts=[count])


def test_the_newest_report_of_a_process_counts_once():
    run = with_report(RunRecord(), report(2, 20), "a", 5.0)
    assert with_report(run, report(2, 20), "a", 6.0) is run
    assert with_report(run, report(1, 10), "a", 6.0) is run
    assert run.accounts["i"].counts == ((1, "posted", 20, 1),)


def test_accounts_of_ended_processes_are_added_up_beyond_the_bound(monkeypatch):
    monkeypatch.setattr(balance, "MAX_PROCESSES", 2)
    accounts = {str(i): process((1, "posted", 10, 1), at=float(i)) for i in range(4)}
    merged = merge_accounts(accounts, now=4.0)
    assert merged == {"sum-a": process((1, "posted", 40, 4), at=3.0)}
