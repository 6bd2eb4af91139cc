"""The thread that writes the index: what it takes, what it skips, what it fills in."""

from __future__ import annotations

import pytest

from atroposlib import load_rollouts
from atroposlib.api.archive import indexer as module
from atroposlib.api.archive.records import StepFact
from atroposlib.cli.view import archive
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
    await api.end()


@pytest.fixture
async def twice(tmp_path):
    """A run of one trained and one queued group, reset, and one posted after it."""
    api = Api(tmp_path, "sqlite", archive_bytes=10**6)
    for last in (False, True):
        [env_id] = await api.started(batch_size=2, commits=True)
        generation = api.service.context.view.generation
        await api.post("/scored_data", sampled(0, env_id=env_id, mark=1 + 2 * last))
        claimed = await api.claim(generation)
        await api.ack(claimed, generation)
        step = {"role": "trainer", "step": 1, "batch_no": claimed["batch_no"]}
        await api.post("/steps", step | {"values": {"loss": float(last)}})
        await api.post(f"/batches/{claimed['batch_no']}/commit", {"generation": generation})
        if not last:
            await api.post("/scored_data", sampled(0, env_id=env_id, mark=2))
            assert await states(api) == {1: ("committed", 1), 2: ("pending", None)}
            assert (await api.http.post("/reset_data")).status_code == 200
    assert await states(api) == {3: ("committed", 2)}
    yield api
    await api.end()


async def points(api, key, **words):
    curves = await api.get("/explore/curves", params={"keys": key} | words)
    return [point for one in curves["series"] for point in one["points"]]


async def test_a_reset_sets_the_index_aside_and_the_new_run_has_none_of_its_rows(twice):
    newest, older = (await twice.get("/explore/runs"))["runs"]
    assert older["run_id"].endswith(".1") and not older["run_id"].startswith(newest["run_id"])
    assert [(one["live"], one["groups"], one["steps"]) for one in (newest, older)] == [
        (True, 1, 1),
        (False, 2, 1),
    ]
    assert (await points(twice, "loss"), await points(twice, "rollouts")) == (
        [[1, 1.0]],
        [[1, 2.0]],
    )
    of_older = {"run_id": older["run_id"]}
    assert await points(twice, "loss", **of_older) == [[1, 0.0]]
    rows = (await twice.get("/explore/rollouts", params=of_older | {"sort": "arrived"}))[
        "rows"
    ]
    assert [(row["gid"], row["state"], row["why"]) for row in rows[::2]] == [
        (1, "committed", None),
        (2, "dropped", "reset"),
    ]
    assert (await twice.get("/explore/groups/1", params=of_older))["archived"]
    assert (await twice.http.get("/explore/groups/1")).status_code == 404
    assert (await twice.http.get("/explore/curves?run_id=x")).status_code == 404


async def test_the_runs_of_a_directory_stay_apart_after_a_restart(twice, tmp_path, capsys):
    runs = (await twice.get("/explore/runs"))["runs"]
    await twice.restart()
    assert await states(twice) == {3: ("committed", 2)}
    assert await points(twice, "loss") == [[1, 1.0]]
    assert [one["gid"] for one in load_rollouts(tmp_path)] == [3, 3]
    of_older = load_rollouts(tmp_path, run_id=runs[1]["run_id"])
    assert [one["gid"] for one in of_older] == [1, 1, 2, 2]
    await twice.end()
    assert archive(["ls", str(tmp_path)]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == [
        f"{one['run_id']}:" for one in runs
    ]


async def test_a_trainer_that_starts_over_begins_a_run_with_the_queued_groups(api):
    await api.half_trained()
    await states(api)
    await api.registered(batch_size=2, starting_step=1)  # it goes on
    assert set(await states(api)) == {1, 2}
    await api.registered(batch_size=2)
    assert await states(api) == {2: ("pending", None)}
    assert await points(api, "rollouts") == []


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


async def test_a_replica_lists_groups_that_another_one_received(postgres, tmp_path):
    url = postgres.fresh_url()
    one, other = Api(tmp_path / "one", url), Api(tmp_path / "other", url)
    [env_id] = await one.started(batch_size=2)
    await one.post("/scored_data", sampled(0, env_id=env_id, group_id="q/1"))
    assert await states(one) == await states(other) == {1: ("pending", None)}
    shown = [(await api.get("/explore/groups/1"))["rows"] for api in (one, other)]
    assert shown[0] == shown[1]
    await one.http.post("/reset_data")
    [env_id] = await one.started(batch_size=2)
    await one.post("/scored_data", sampled(0, env_id=env_id))
    await other.get("/status")  # it sees the reset
    assert 1 not in await states(other)
    await one.end()
    await other.end()
