"""GET /explore/why: findings over the looks of this process, and their events."""

from __future__ import annotations

import pytest

from atroposlib.api.run import doctor
from tests.api.harness import ENV, Api

FAILING = {"role": "env", "name": "e-0a1b2c", "phase": "rollout", "waiting_on": None}


@pytest.fixture
async def api(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "APART_S", 0.0)
    made = Api(tmp_path)
    yield made
    await made.end()


def kinds(api):
    ring = api.service.events._ring
    return [(e.fields["key"], e.fields["change"]) for e in ring if e.kind == "finding"]


async def test_a_finding_appears_with_an_event_and_keeps_its_time(api):
    first = await api.get("/explore/why")
    again = await api.get("/explore/why")
    assert [one["key"] for one in first["findings"]] == ["no-trainer"]
    assert first["findings"][0]["at"] == again["findings"][0]["at"]
    assert first["moving"] is None
    assert kinds(api) == [("no-trainer", "began")]


async def test_a_finding_that_ended_is_an_event(api):
    await api.get("/explore/why")
    await api.started()
    await api.post("/heartbeat", FAILING | {"details": {"failed_in_a_row": 4}})
    answer = await api.get("/explore/why")
    assert "rollouts-fail" in [one["key"] for one in answer["findings"]]
    assert ("no-trainer", "ended") in kinds(api)


async def test_the_answer_is_never_stored_by_a_browser_and_changes_nothing(api):
    before = await api.get("/status")
    reply = await api.http.get("/explore/why")
    assert reply.headers["cache-control"] == "no-store"
    after = await api.get("/status")
    assert {k: v for k, v in before.items() if k != "ages_s"} == {
        k: v for k, v in after.items() if k != "ages_s"
    }


async def beat(api, role, phase, waiting_on=None, **details):
    body = {"role": role, "name": f"{role}-0a1b2c", "phase": phase, "details": details}
    await api.post("/heartbeat", {**body, "waiting_on": waiting_on})


async def send(api, env, sequences, mark=0):
    rows = {"tokens": [[1, mark + 2]] * sequences, "masks": [[-100, mark + 2]] * sequences}
    more = {"inference_logprobs": [[1.0, -0.5]] * sequences, "env_id": env}
    return await api.post("/scored_data", {**rows, **more, "scores": [1.0] * sequences})


async def joined(api, **trainer):
    """The generation of a trainer that waits for a batch, with one environment."""
    [env] = await api.started(commits=True, **trainer)
    return api.service.context.run_cache.view.generation, env


async def frozen_trainer(api):
    generation, env = await joined(api)
    await beat(api, "trainer", "waiting for batch")
    api.now += 30


async def frozen_in_step(api):
    generation, env = await joined(api)
    for mark in range(2):
        await send(api, env, 2, mark)
    await api.claim(generation)
    await beat(api, "trainer", "training")
    api.now += 30


async def frozen_environment(api):
    await joined(api)
    await beat(api, "env", "rollout")
    api.now += 30
    await beat(api, "trainer", "waiting for batch")


async def unmet_minimum(api):
    one = ENV | {"min_batch_allocation": 0.5}
    first, _ = await api.started(envs=(one, one | {"desired_name": "late"}))
    for mark in range(2):
        await send(api, first, 2, mark)
    await waits(api)


async def impossible_minima(api):
    one = ENV | {"min_batch_allocation": 0.5, "group_size": 3}
    envs = await api.started(envs=(one, one | {"desired_name": "other"}))
    for env in envs:
        await send(api, env, 3, env)
    await waits(api)


async def too_large(api):
    env = (await api.started(batch_size=8, envs=(ENV | {"group_size": 6},)))[0]
    await send(api, env, 6)
    await api.claim(await api.registered(batch_size=4))
    await waits(api)


async def half_groups(api):
    env = (await api.started(envs=(ENV | {"group_size": 4},)))[0]
    await send(api, env, 3)
    await waits(api)


async def short_leases(api):
    generation, env = await joined(api)
    for mark in range(2):
        await send(api, env, 2, mark)
    for _ in range(5):
        await api.claim(generation, lease_s=5)
        api.now += 6
    await beat(api, "trainer", "training")


async def uncommitted(api):
    generation, env = await joined(api)
    for mark in range(4):
        await send(api, env, 2, mark)
    for _ in range(2):
        await api.trained(generation)
    api.service.store.max_bytes = (await api.get("/status"))["retained_bytes"]
    api.service.context.queue_stats.invalidate()
    await waits(api)


async def slow(api):
    await frozen_in_step(api)
    await beat(api, "env", "rollout")
    await beat(api, "trainer", "training", phase_s=200.0, phase_median_s=3.0)


async def unadmitted(api):
    await joined(api)
    await beat(api, "env", "paused: not admitted", "a batch")
    await waits(api, env=False)


async def waits(api, env=True):
    """Half a minute in which trainer and environment wait."""
    api.now += 30
    await beat(api, "trainer", "waiting for batch")
    if env:
        await beat(api, "env", "rollout", rollouts_running=2)
    else:
        await beat(api, "env", "paused: not admitted", "a batch")


STALLS = {
    "trainer-silent": (frozen_trainer, "silent since 30 s, last phase 'waiting for batch'"),
    "trainer-silent-in-step": (frozen_in_step, "4 sequences, lease ends in "),
    "environment-silent": (frozen_environment, "env env-0a1b2c: silent since 30 s"),
    "minimum-unmet": (unmet_minimum, "each batch needs 2 sequences of late"),
    "minima-impossible": (impossible_minima, "can never be met"),
    "group-too-large": (too_large, "larger than a batch of 4 sequences"),
    "partial-groups": (half_groups, "3 sequences"),
    "redelivered": (short_leases, "batch 1: delivery 5"),
    "never-committed": (uncommitted, "2 acked batches until POST /batches/N/commit"),
    "slow-step": (slow, "training for 200 s, median 3.0 s"),
    "not-admitted": (unadmitted, "waits for a batch"),
}


@pytest.mark.parametrize("key", STALLS)
async def test_a_real_stall_is_the_first_finding(api, key):
    stage, part = STALLS[key]
    await stage(api)
    first = (await api.get("/explore/why"))["findings"][0]
    assert first["key"] == key
    assert part in " ".join(first["evidence"])


async def test_progress_between_the_looks_ends_the_finding(api):
    generation, env = await joined(api)
    await waits(api)
    for mark in range(4):
        await send(api, env, 2, mark)
        await api.get("/explore/why")
        await beat(api, "env", "rollout")
    await api.trained(generation)
    await beat(api, "trainer", "training")
    answer = await api.get("/explore/why")
    assert answer["findings"] == [] and "groups/s" in answer["moving"]
