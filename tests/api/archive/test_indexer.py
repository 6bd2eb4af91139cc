"""The thread that writes the index: what it takes, what it skips, what it fills in."""

from __future__ import annotations

import pytest

from atroposlib.api.archive import indexer as module
from atroposlib.api.archive.records import StepFact
from tests.api.harness import Api, sampled


async def states(api):
    assert api.service.context.indexer.flush()
    rows = (await api.get("/explore/rollouts?sort=arrived"))["rows"]
    return {row["gid"]: (row["state"], row["batch_no"]) for row in rows}


@pytest.mark.parametrize("api_store", ["memory", "sqlite"])
async def test_rows_follow_their_groups_from_the_queue_to_the_commit(tmp_path, api_store):
    api = Api(tmp_path, api_store)
    [env_id] = await api.started(batch_size=2, commits=True)
    generation = api.service.context.view.generation
    for mark in (1, 2, 3):
        await api.post("/scored_data", sampled(0, mark=mark, env_id=env_id))
    assert await states(api) == {gid: ("pending", None) for gid in (1, 2, 3)}
    one = await api.claim(generation)
    two = await api.claim(generation, claim_id="b")
    await api.ack(one, generation)
    assert await states(api) == {1: ("acked", 1), 2: ("leased", 2), 3: ("pending", None)}
    await api.post("/batches/1/commit", {"generation": generation})
    assert (await states(api))[1] == ("committed", 1)
    await api.ack(two, generation)
    await api.post("/batches/1/rewind", {"generation": generation})
    assert (await states(api))[2] == ("leased", 2)
    await api.http.post("/reset_data")
    assert (await states(api))[3] == ("dropped", None)
    await api.end()


async def test_buffered_groups_become_pending_when_their_group_is_complete(api):
    [env_id] = await api.started(batch_size=2)
    await api.post("/scored_data", sampled(0, rows=1, env_id=env_id))
    assert await states(api) == {1: ("buffered", None)}
    await api.post("/scored_data", sampled(0, rows=1, mark=2, env_id=env_id))
    assert await states(api) == {1: ("pending", None), 2: ("pending", None)}


async def test_groups_that_the_index_missed_are_filled_in_after_a_restart(durable):
    [env_id] = await durable.started(batch_size=2)
    await durable.post("/scored_data", sampled(0, env_id=env_id, group_id="q/1"))
    durable.service.context.indexer.flush()
    before = await durable.get("/explore/groups/1")
    durable.service.context.indexer.index.change("DELETE FROM rollout")
    await durable.restart()
    assert await states(durable) == {1: ("pending", None)}
    after = await durable.get("/explore/groups/1")
    assert after["rows"] == before["rows"]


async def test_groups_beyond_the_queue_are_skipped_counted_and_filled_in(durable, monkeypatch):
    indexer = durable.service.context.indexer
    [env_id] = await durable.started(batch_size=2)
    monkeypatch.setattr(module, "MAX_WAITING", 0)
    await durable.post("/scored_data", sampled(0, env_id=env_id))
    assert indexer.skipped >= 1
    monkeypatch.undo()
    assert (await states(durable))[1] == ("pending", None)


async def test_a_failing_index_stops_neither_posts_nor_the_thread(durable, monkeypatch):
    indexer = durable.service.context.indexer
    [env_id] = await durable.started(batch_size=2)

    def fail(records):
        raise OSError("the disk is full")

    monkeypatch.setattr(indexer.index, "write", fail)
    reply = await durable.http.post("/scored_data", json=sampled(0, env_id=env_id))
    assert reply.status_code == 200
    indexer.flush()
    monkeypatch.undo()
    assert (await states(durable))[1] == ("pending", None)


async def test_records_after_the_close_are_refused(tmp_path):
    api = Api(tmp_path)
    await api.end()
    assert not api.service.context.indexer.submit(StepFact("trainer", "t", 1, 0.0, {}))
