"""Concurrent changes of the run document."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from atroposlib.api.common.pools import Pool, Threads
from atroposlib.api.common.run_record import RunRecord
from atroposlib.api.decisions.run_state import (
    announce,
    find_env,
    join,
    leave,
    register,
    run_of,
)
from atroposlib.api.run.run_cache import RunCache
from atroposlib.api.run.service import RolloutService
from atroposlib.api.store import open_store
from atroposlib.api.store.sql.run import LoadRun, SaveRun
from atroposlib.errors import StaleGeneration, UnknownEnv
from atroposlib.wire import RegisterEnv, Registration

TRAINER = Registration(
    wandb_group="g",
    wandb_project="p",
    batch_size=8,
    max_token_len=64,
    checkpoint_dir="c",
    save_checkpoint_interval=1,
    starting_step=0,
    num_steps=1,
)
ENV = RegisterEnv(max_token_length=64, desired_name="env", weight=1.0, group_size=4)


@pytest.fixture
def run_cache():
    store = open_store("memory")
    yield RunCache(store, Pool(2), lambda old, new: None)
    store.close()


def joining(ids: list[int]):
    mine = len(ids)
    ids.append(-1)

    def event(run: RunRecord) -> RunRecord:
        run, entry = join(run, ENV)
        ids[mine] = entry.env_id
        return run

    return event


async def test_environments_that_register_concurrently_share_one_save_and_get_distinct_ids(
    run_cache,
):
    ids: list[int] = []
    views = await asyncio.gather(*(run_cache.update(joining(ids)) for _ in range(50)))
    assert ids == list(range(50))
    assert len(run_cache.view.run.envs) == 50
    assert run_cache.view.revision <= 3  # the first alone, those that came meanwhile together
    assert all(len(view.run.envs) > env for view, env in zip(views, ids))


async def test_a_run_saved_whole_by_an_earlier_version_is_continued():
    store, run = open_store("memory"), RunRecord(run_id="r")
    for _ in range(3):
        run, _ = join(run, ENV)
    store.do(SaveRun(msgspec.json.encode(run), 0))
    one, other = (RunCache(store, Pool(2), lambda old, new: None) for _ in range(2))
    assert one.view.run == run
    await one.update(lambda run: leave(run, 1))
    await other.update(joining([]))  # from the older revision: it reads again
    await one.refresh()
    assert one.view.run == other.view.run == run_of(store.ask(LoadRun()))
    assert [env.connected for env in one.view.run.envs] == [True, False, True, True]
    store.close()


async def test_a_join_writes_and_reads_the_new_environments_only(run_cache, monkeypatch):
    store, written, read = run_cache._store, [], []
    do, ask = store.do, store.ask

    def saving(save):
        written.append(len(save.envs))
        return do(save)

    def loading(load):
        read.append(ask(load))
        return read[-1]

    monkeypatch.setattr(store, "do", saving)
    other = RunCache(store, Pool(2), lambda old, new: None)
    monkeypatch.setattr(store, "ask", loading)
    for _ in range(20):
        await run_cache.update(joining([]))
        await other.refresh()
    assert written == [1] * 20 and [len(one.envs) for one in read] == [1] * 20
    assert other.view == run_cache.view


async def test_a_rejected_change_does_not_affect_other_changes_of_the_same_save(run_cache):
    ids: list[int] = []

    def refused(run: RunRecord) -> RunRecord:
        find_env(run, 99)
        return run

    changes = [joining(ids), refused, joining(ids)]
    answers = await asyncio.gather(
        *(run_cache.update(change) for change in changes), return_exceptions=True
    )
    assert isinstance(answers[1], UnknownEnv)
    assert ids == [0, 1]
    assert len(run_cache.view.run.envs) == 2


async def test_each_registration_gets_a_separate_generation_among_other_changes(run_cache):
    def enter(run: RunRecord) -> RunRecord:
        return register(run, TRAINER, "run", 0)

    await run_cache.update(enter, fence=True)
    views = await asyncio.gather(
        run_cache.update(lambda run: announce(run, 1)),
        run_cache.update(enter, fence=True),
        run_cache.update(lambda run: announce(run, 2)),
        run_cache.update(enter, fence=True),
    )
    assert (views[1].generation, views[3].generation) == (2, 3)
    assert views[3].run.policy_version == 0


async def test_a_change_cancelled_before_its_save_is_not_made(run_cache):
    ids: list[int] = []
    first = asyncio.ensure_future(run_cache.update(joining(ids)))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(run_cache.update(joining(ids)))
    await asyncio.sleep(0)
    second.cancel()
    await first
    with pytest.raises(asyncio.CancelledError):
        await second
    assert len(run_cache.view.run.envs) == 1


async def test_a_late_copy_of_a_registration_fences_nobody_in_any_store(store):
    service = RolloutService(store, lambda: 0.0, threads=Threads())
    first, second = (TRAINER.model_copy(update={"register_id": one}) for one in ("1", "2"))
    views = await asyncio.gather(*(service.register(first) for _ in range(3)))
    assert {view.generation for view in views} == {store.ask(LoadRun()).generation}
    assert (await service.register(second)).generation == views[0].generation + 1
    again = RolloutService(store, lambda: 0.0, threads=Threads())  # after a restart
    with pytest.raises(StaleGeneration):
        await again.register(first)
    assert (await again.register(second)).generation == views[0].generation + 1
    assert store.ask(LoadRun()).generation == views[0].generation + 1
