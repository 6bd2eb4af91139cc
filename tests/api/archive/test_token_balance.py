"""Totals of the rows of an index, and figures of the balance in the status."""

from __future__ import annotations

import threading

import pytest

from atroposlib.api.archive import token_balance
from atroposlib.api.archive.index import Index
from atroposlib.api.archive.token_balance import has_freed_rows, row_totals
from atroposlib.api.decisions.balance import RowTotal
from tests.api.harness import Api, sampled

ROW = "INSERT INTO rollout (gid, row, env, n_trained, state, batch_no, step) VALUES {}"


@pytest.fixture
async def api(tmp_path, monkeypatch):
    monkeypatch.setattr(token_balance, "WAIT_S", 600.0)
    monkeypatch.setattr(token_balance, "REST", 0.0)
    made = Api(tmp_path, "sqlite")
    yield made
    await made.end()


async def step_of(api, env, mark):
    """Train on a batch of a group of two rows, each with one trained token."""
    await api.post("/scored_data", sampled(0, mark=mark, env_id=env))
    await api.trained(api.service.context.view.generation)
    assert api.service.context.indexer.flush(600.0)


async def report(api, env, sequence, instance="e", **counts):
    lines = [
        {"version": 0, "state": state, "tokens": n, "samples": 1}
        for state, n in counts.items()
    ]
    body = {"env_id": env, "instance": instance, "sequence": sequence, "counts": lines}
    assert await api.post("/account", body) == {"status": "ok"}


async def test_a_status_has_the_figures_of_the_last_seconds(api, monkeypatch):
    reads = []
    read = token_balance.index_account
    monkeypatch.setattr(token_balance, "index_account", lambda *a: reads.append(a) or read(*a))
    [env] = await api.started(batch_size=2, commits=True)
    await step_of(api, env, 1)
    await report(api, env, 1, posted=2, masked=6)
    first = (await api.get("/status"))["tokens"]
    assert (first["generated"], first["trained"], first["useful"]) == (8, 2, 0.25)
    assert (first["useful_usual"], first["recent_losses"]) == (None, {})
    await report(api, env, 2, posted=2, masked=14)
    api.now += 4
    assert (await api.get("/status"))["tokens"] == {**first, "age_s": 4.0}
    api.now += 1
    later = (await api.get("/status"))["tokens"]
    assert (later["generated"], later["age_s"], len(reads)) == (16, 0.0, 2)
    account = await api.get("/explore/account")
    assert {key: account[key] for key in ("generated", "useful", "unknown")} == {
        key: later[key] for key in ("generated", "useful", "unknown")
    }


async def test_a_slow_balance_leaves_the_status_with_the_figures_of_before(api, monkeypatch):
    [env] = await api.started(batch_size=2, commits=True)
    await step_of(api, env, 1)
    assert (await api.get("/status"))["tokens"]["trained"] == 2
    may_read, read = threading.Event(), token_balance.index_account

    def slow(*words):
        assert may_read.wait(600.0)
        return read(*words)

    monkeypatch.setattr(token_balance, "index_account", slow)
    monkeypatch.setattr(token_balance, "WAIT_S", 0.0)
    await step_of(api, env, 2)
    api.now += 6
    for _ in range(2):
        assert (await api.get("/status"))["tokens"]["trained"] == 2
    may_read.set()
    monkeypatch.setattr(token_balance, "WAIT_S", 600.0)
    assert (await api.get("/status"))["tokens"]["trained"] == 4


async def test_a_balance_that_takes_long_is_kept_longer(api, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(token_balance, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(token_balance, "REST", 20.0)  # a read takes a second of this clock
    [env] = await api.started(batch_size=2, commits=True)
    await api.get("/status")
    await step_of(api, env, 1)
    for passed, trained in ((19, 0), (1, 2)):
        api.now += passed
        assert (await api.get("/status"))["tokens"]["trained"] == trained


async def test_a_reset_in_mid_run_begins_from_zero_and_is_no_alarm(api):
    [env] = await api.started(batch_size=2, commits=True)
    for step in range(1, 31):
        await step_of(api, env, step)
        await report(api, env, step, posted=2 * step)
        api.now += 10
        tokens = (await api.get("/status"))["tokens"]
    assert (tokens["useful"], tokens["useful_usual"], tokens["unknown"]) == (1.0, 1.0, 0)
    assert (await api.http.get("/reset_data")).is_success
    assert api.service.context.indexer.flush(600.0)
    tokens = (await api.get("/status"))["tokens"]
    assert (tokens["generated"], tokens["trained"], tokens["unknown"]) == (0, 0, 0)
    [env] = await api.started(batch_size=2, commits=True)
    for step in range(1, 16):
        await step_of(api, env, 100 + step)
        # of the new run most tokens are dropped, which is its usual share
        counts = {"posted": 2 * step, "dropped/too_long": 18 * step}
        await report(api, env, step, instance="f", **counts)
        api.now += 10
        status = await api.get("/status")
        keys = {finding["key"] for finding in status["verdict"]["findings"]}
        assert not keys & {"useful-share-halved", "tokens-unknown"}
    assert status["tokens"]["useful"] == 0.1 and status["tokens"]["useful_usual"] is None


def test_rows_of_a_freed_group_count_by_the_sum_of_their_batch():
    index = Index(None)
    index.change(
        ROW.format(
            "(1, 0, 'a', 5, 'committed', 1, 7), (2, 0, 'a', 6, 'committed', 1, 7), "
            "(-1, 0, 'a', 9, 'dropped', NULL, NULL), (3, 0, 'a', 4, 'pending', NULL, NULL)"
        )
    )
    index.change("INSERT INTO batch (no, step, state) VALUES (1, 7, 'committed')")
    index.change("INSERT INTO rollup (batch_no, env, n, trained) VALUES (1, 'a', 2, 11)")
    assert not has_freed_rows(index)
    index.change("DELETE FROM rollout WHERE gid = 1")
    assert has_freed_rows(index)
    assert sorted(row_totals(index), key=lambda row: row.tokens) == [
        RowTotal("a", None, None, "pending", None, 4, 1),
        RowTotal("a", None, 7, "committed", None, 5, 1),
        RowTotal("a", None, 7, "committed", None, 6, 1),
    ]
    index.close()
