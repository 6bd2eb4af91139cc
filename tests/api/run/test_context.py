"""Two API replicas on one store: each applies the changes of the other."""

from __future__ import annotations

import asyncio

import pytest

from atroposlib.api.decisions.run_state import ENV_TIMEOUT_S, run_of
from atroposlib.api.store import open_store
from atroposlib.api.store.sql.run import LoadRun
from tests.api import harness
from tests.api.harness import ENV, TRAINER, Api, group, marks


@pytest.fixture
async def replicas(tmp_path, monkeypatch):
    """Two APIs over one store, as two processes on one database would be."""
    store = open_store("memory")
    store.shared = True
    monkeypatch.setattr(harness, "open_store", lambda *_: store)
    monkeypatch.setattr("atroposlib.api.run.run_cache.SHARED_STORE_LAG_S", 0.0)
    monkeypatch.setattr("atroposlib.api.run.queue_stats.SHARED_STORE_LAG_S", 0.0)
    pair = Api(tmp_path), Api(tmp_path)
    yield pair
    for api in pair:
        await api.end()


async def test_a_call_at_one_replica_takes_effect_at_the_other_replica(replicas):
    one, two = replicas
    generation = (await one.post("/register", TRAINER))["generation"]
    assert await two.get("/info") == {"batch_size": 4, "max_token_len": 64}
    await two.claim(generation)
    env_id = (await one.post("/register-env", ENV))["env_id"]
    for api, mark in ((two, 1), (one, 2)):
        reply = await api.post("/scored_data", group(mark=mark, env_id=env_id))
        assert reply == {"status": "received"}
    await two.post("/policy_version", {"version": 3})
    assert (await one.post("/status-env", {"env_id": env_id}))["policy_version"] == 3
    claimed = await one.claim(generation)
    assert marks(claimed) == [1, 2]
    assert (await two.ack(claimed, generation))["first"] is True
    assert (await one.get("/status"))["batches_acked"] == 1


async def test_a_claim_waiting_at_one_replica_gets_groups_posted_to_the_other(replicas):
    one, two = replicas
    generation = (await one.post("/register", TRAINER))["generation"]
    waiting = asyncio.create_task(one.claim(generation, wait_s=20))
    await two.post("/scored_data", group(4, mark=1))
    assert marks(await waiting) == [1]


async def test_a_trainer_at_one_replica_is_stale_after_a_registration_at_the_other(replicas):
    one, two = replicas
    await one.post("/scored_data_list", [group(4, mark=1), group(4, mark=2)])
    old = (await one.post("/register", TRAINER))["generation"]
    claimed = await one.claim(old)
    new = (await two.post("/register", TRAINER))["generation"]
    assert new > old
    late = await one.http.post(
        "/batches/1/ack", json={"generation": old, "epoch": claimed["epoch"]}
    )
    assert late.status_code == 409
    assert (await one.http.post("/batches/claim", json={"generation": old})).status_code == 409
    assert marks(await one.claim(new)) == [1]


async def test_concurrent_transitions_at_two_replicas_are_all_saved(replicas):
    one, two = replicas
    generation = (await one.post("/register", TRAINER))["generation"]
    await one.claim(generation)
    joined = await asyncio.gather(
        *(api.post("/register-env", ENV) for api in replicas for _ in range(8))
    )
    assert sorted(entry["env_id"] for entry in joined) == list(range(16))
    await two.http.post("/reset_data")
    reply = await one.http.post("/scored_data", json=group(env_id=3))
    assert (reply.status_code, reply.json()["status"]) == (404, "unknown_env")


async def test_environments_that_left_or_are_forgotten_are_so_at_each_replica(
    replicas, monkeypatch
):
    monkeypatch.setattr("atroposlib.api.decisions.run_state.KEPT_ENVS", 4)
    await replicas[0].claim((await replicas[0].post("/register", TRAINER))["generation"])
    for turn in range(12):
        for api in replicas:
            joined = await api.post("/register-env", ENV)
            assert joined["env_id"] == 2 * turn + replicas.index(api)
        other = replicas[turn % 2]
        await other.post("/disconnect-env", {"env_id": joined["env_id"]})
        for api in replicas:
            await api.get("/info")
            assert api.service.run.envs == run_of(api.service.store.ask(LoadRun())).envs
            assert not api.service.run.envs[-1].connected
    assert 12 <= len(api.service.run.envs) < 18


async def test_an_env_that_calls_one_replica_is_alive_at_the_other(replicas):
    one, two = replicas
    generation = (await one.post("/register", TRAINER))["generation"]
    await one.claim(generation)
    env_id = (await one.post("/register-env", ENV | {"min_batch_allocation": 0.5}))["env_id"]
    await one.post("/scored_data_list", [group(2)] * 2)
    for _ in range(4):
        for api in replicas:
            api.now += ENV_TIMEOUT_S / 2
        await one.post("/status-env", {"env_id": env_id})
    assert (await two.claim(generation))["batch"] is None  # its minimum is kept
    for api in replicas:
        api.now += ENV_TIMEOUT_S + 1
    assert len((await two.claim(generation))["batch"]) == 2


async def test_trainers_of_the_original_api_may_alternate_between_replicas(replicas):
    one, two = replicas
    await one.post("/register", TRAINER)
    await one.post("/scored_data_list", [group(4, mark=mark) for mark in (1, 2, 3)])
    taken = [marks(await api.get("/batch")) for api in (one, two, one)]
    assert taken == [[1], [2], [3]]
