"""Why a run waits: one reason of /status and of the claim, and what is freed for it."""

from __future__ import annotations

import pytest

from atroposlib.api.decisions.run_state import ENV_TIMEOUT_S
from tests.api.harness import ENV, TRAINER, Api, group, marks, sampled
from tests.api.run.test_posts import size_of_group


@pytest.fixture
async def small(tmp_path):
    """An API with room for four groups of four."""
    api = Api(tmp_path, max_bytes=4 * await size_of_group(tmp_path) + 60, hold_s=0.0)
    yield api
    await api.end()


async def reason(api, generation):
    """The one reason of both."""
    claimed = await api.claim(generation)
    assert claimed["batch"] is None
    assert (await api.get("/status"))["blocked_reason"] == claimed["blocked_reason"]
    return claimed["blocked_reason"]


async def test_a_store_full_of_uncommitted_batches_says_so(small):
    generation = await small.registered(commits=True)
    for mark in range(4):
        await small.post("/scored_data", group(4, mark=mark))
        await small.trained(generation)
    assert (await small.http.post("/groups", json=[group(4, mark=9)])).status_code == 429
    text = await reason(small, generation)
    assert text.startswith("the store is full") and "by 4 acked batches until" in text
    await small.post("/batches/4/commit", {"generation": generation})
    assert await reason(small, generation) == "the queue is empty: waiting for scored groups"


@pytest.mark.parametrize("leaves", [True, False])
async def test_buffers_of_absent_environments_are_freed_for_others(small, leaves):
    envs = (ENV | {"group_size": 7},) * 2 + (ENV,)
    *gone, here = await small.started(envs=envs)
    for mark in range(4):
        await small.post("/scored_data", group(4, mark=mark, env_id=gone[mark % 2]))
    post = group(4, mark=9, env_id=here)
    assert (await small.http.post("/scored_data", json=post)).status_code == 503
    assert "in buffers until" in (await small.get("/status"))["blocked_reason"]
    if leaves:
        await small.post("/disconnect-env", {"env_id": gone[0]})
    small.now += 0 if leaves else ENV_TIMEOUT_S - 1
    await small.get("/status-env", params={"env_id": here})
    small.now += 0 if leaves else 2
    assert (await small.http.post("/scored_data", json=post)).status_code == 200
    status = await small.get("/status")
    expected = (8, 2) if leaves else (0, 4)
    assert (status["buffered_sequences"], status["dropped_groups"]) == expected


async def test_admissions_of_an_environment_that_left_are_free_for_others(api):
    gone, here = await api.started(envs=(ENV, ENV), max_staleness=0)
    asked = {"sequences": 4, "ttl_s": 86_400}
    assert (await api.post("/admission", asked | {"env_id": gone}))["granted"] == 4
    assert (await api.post("/admission", asked | {"env_id": here}))["granted"] == 0
    assert "admitted and not posted: 4 of e_0" in (await api.get("/status"))["blocked_reason"]
    await api.post("/disconnect-env", {"env_id": gone})
    assert (await api.post("/admission", asked | {"env_id": here}))["granted"] == 4


async def test_stale_groups_are_the_reason_before_and_after_the_claim_that_drops_them(api):
    generation = await api.registered(max_staleness=1, staleness_policy="drop")
    await api.claim(generation)
    await api.post("/scored_data", sampled(0, rows=4))
    await api.post("/policy_version", {"version": 9})
    before = (await api.get("/status"))["blocked_reason"]
    assert "1 queued groups are too stale and 0 were dropped" in before
    assert "0 queued groups are too stale and 1 were dropped" in await reason(api, generation)
    assert (await api.get("/status"))["dropped_groups"] == 1


async def test_the_claim_and_the_status_name_groups_larger_than_a_smaller_batch(api):
    await api.registered(batch_size=4)
    await api.post("/scored_data", group(4))
    generation = await api.registered(batch_size=3)
    assert "every queued group is larger than a batch of 3" in await reason(api, generation)


async def test_group_sizes_that_fit_no_batch_are_a_warning(api):
    one, other = await api.started(batch_size=16, envs=(ENV, ENV | {"desired_name": "f"}))
    for mark in range(4):
        await api.post("/scored_data", group(8, mark=mark, env_id=one))
    await api.post("/scored_data", group(6, env_id=other))
    status = await api.get("/status")
    assert status["blocked_reason"] is None
    assert status["warnings"] == [
        "groups of 6 of f_0 (env 1) fit no batch of 16 together with the other sizes (8): "
        "1 wait"
    ]


async def test_a_silent_environment_with_a_minimum_is_named_with_the_remedy(api):
    envs = (ENV, ENV | {"min_batch_allocation": 0.5})
    one, other = await api.started(envs=envs)
    await api.post("/scored_data", group(4, env_id=one))
    text = (await api.get("/status"))["blocked_reason"]
    assert "waiting for it (POST /disconnect-env of env 1" in text
    await api.post("/disconnect-env", {"env_id": other})
    assert marks(await api.get("/batch")) == [1]


async def test_a_crash_loop_of_environments_does_not_use_up_the_run(api, monkeypatch):
    monkeypatch.setattr("atroposlib.api.decisions.run_state.KEPT_ENVS", 6)
    [stays] = await api.started()
    ids = []
    for _ in range(30):
        ids.append((await api.post("/register-env", ENV))["env_id"])
        await api.post("/disconnect-env", {"env_id": ids[-1]})
    assert ids == list(range(1, 31)) and len(api.service.run.envs) <= 7
    assert (await api.http.get("/status-env", params={"env_id": stays})).status_code == 200
    assert (await api.http.get("/status-env", params={"env_id": 1})).status_code == 404
    assert api.service.run.envs[-1].wandb_name == "e_30"


# --- batches set aside --------------------------------------------------------------


async def crash(api, times):
    for _ in range(times):
        await api.claim((await api.post("/register", TRAINER))["generation"])


async def test_a_trainer_that_crashes_at_its_start_burns_no_batch_of_its_successor(tmp_path):
    api = Api(tmp_path, max_deliveries=3)
    await api.registered()
    await api.post("/scored_data_list", [group(4, mark=mark) for mark in range(4)])
    await crash(api, 12)
    generation = await api.registered()
    assert sorted(sum([await api.trained(generation) for _ in range(4)], [])) == [0, 1, 2, 3]
    await api.end()


async def test_a_batch_that_crashes_a_working_trainer_is_dead_until_it_is_revived(tmp_path):
    api = Api(tmp_path, max_deliveries=3)
    await api.registered()
    await api.post("/scored_data_list", [group(4, mark=mark) for mark in (1, 2, 3)])
    await crash(api, 3)
    generation = await api.registered()
    assert await api.trained(generation) == [2]  # the one that crashes comes last now
    assert marks(await api.claim(generation)) == [1]  # again, by a trainer that works
    generation = await api.registered()
    assert await api.trained(generation) == [3]
    [dead] = (await api.get("/batches/dead"))["batches"]
    assert (dead["no"], dead["groups"], dead["sequences"]) == (
        3,
        1,
        4,
    )  # under its last number
    assert await api.post("/batches/7/revive", None) == {"found": False}
    assert await api.post("/batches/3/revive", None) == {"found": True}
    assert await api.trained(generation) == [1]
    assert (await api.get("/status"))["batches_dead"] == 0
    await api.end()
