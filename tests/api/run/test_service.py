"""Two replicas of the API over one PostgreSQL schema serve one run as if they were one."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count

from atroposlib.api.decisions.run_state import ENV_TIMEOUT_S
from tests.api.harness import ENV, TRAINER, group, marks

WAITING = (
    "each batch holds at least 2 sequences of e_0 (env 0), but 0 are queued: waiting for it "
    "(POST /disconnect-env of env 0, or 60 s of silence (300 s of old clients), ends its minimum)"
)


async def becomes(api, path, **expected):
    """A replica sees what another one did within a quarter of a second."""
    shown = {}
    for _ in range(12_000):  # ten minutes
        reply = await api.get(path)
        shown = {key: reply[key] for key in expected}
        if shown == expected:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{path} still shows {shown}")


async def test_registration_post_and_claim_may_use_different_replicas(replicas):
    one, other = replicas
    generation = await one.registered()
    await one.claim(generation)
    env = await one.post("/register-env", ENV)
    for mark in (1, 2):
        await other.post("/scored_data", group(mark=mark, env_id=env["env_id"]))
    await one.post("/scored_data", group(mark=3, env_id=env["env_id"]))
    await other.post("/scored_data", group(mark=4, env_id=env["env_id"]))
    first = await one.claim(generation, claim_id="a")
    second = await other.claim(generation, claim_id="b")
    assert (marks(first), marks(second)) == ([1, 2], [3, 4])
    assert (await other.ack(first, generation))["status"] == "acked"
    assert (await one.ack(second, generation))["status"] == "acked"
    await becomes(one, "/status", batches_acked=2)


async def test_environments_that_register_at_both_replicas_get_different_ids(replicas):
    one, other = replicas
    await one.started(envs=())
    asked = [replica.post("/register-env", ENV) for replica in (one, other) * 4]
    answers = await asyncio.gather(*asked)
    assert sorted(answer["env_id"] for answer in answers) == list(range(8))
    assert len({answer["wandb_name"] for answer in answers}) == 8


async def test_a_waiting_claim_gets_groups_posted_to_the_other_replica(replicas):
    one, other = replicas
    generation = await one.registered()
    waiting = asyncio.create_task(one.claim(generation, wait_s=20))
    await other.get("/batch")
    for mark in (1, 2):
        await other.post("/scored_data", group(mark=mark))
    assert marks(await waiting) == [1, 2]


async def test_a_reset_takes_effect_at_the_other_replica(replicas):
    one, other = replicas
    [env] = await one.started()
    await other.post("/scored_data", group(env_id=env))
    await one.http.post("/reset_data")
    refused = await other.http.post("/scored_data", json=group(env_id=env))
    assert refused.status_code == 404
    assert await other.get("/info") == {"batch_size": -1, "max_token_len": -1}
    await becomes(other, "/status", queue_size=0)


async def test_a_registration_at_the_other_replica_makes_a_trainer_stale(replicas):
    one, other = replicas
    await one.started(envs=())
    older = await one.registered()
    for mark in (1, 2):
        await one.post("/scored_data", group(mark=mark))
    held = await one.claim(older)
    newer = await other.registered()
    assert newer > older
    refused = await one.http.post("/batches/claim", json={"generation": older})
    assert refused.status_code == 409
    ack = {"generation": older, "epoch": held["epoch"]}
    late = await one.http.post(f"/batches/{held['batch_no']}/ack", json=ack)
    assert late.status_code == 409
    again = await one.claim(newer)
    assert (again["batch_no"], marks(again)) == (held["batch_no"], [1, 2])


async def test_no_batch_is_delivered_twice_and_no_group_is_lost_under_concurrency(replicas):
    generation = await replicas[0].registered()
    names, posts = count(), 60

    async def post(i):
        reply = await replicas[i % 2].post("/scored_data", group(mark=i + 10))
        assert reply["status"] == "received"

    async def train():
        while sum(len(batch) for batch in trained) < posts:
            replica = replicas[next(names) % 2]
            claimed = await replica.claim(generation, claim_id=f"{next(names)}", wait_s=1)
            if claimed["batch"] is not None:
                trained.append(marks(claimed))
                await replica.ack(claimed, generation)

    trained: list[list[int]] = []
    trainers = [asyncio.create_task(train()) for _ in range(3)]
    await asyncio.gather(*(post(i) for i in range(posts)))
    await asyncio.wait_for(asyncio.gather(*trainers), timeout=600)
    seen = Counter(mark for batch in trained for mark in batch)
    assert seen == {mark: 1 for mark in range(10, 10 + posts)}


async def test_an_environment_that_calls_the_other_replica_counts_as_live(replicas):
    one, other = replicas
    demanding = ENV | {"min_batch_allocation": 0.5}
    talker, _ = await one.started(envs=(demanding, ENV))
    for _ in range(4):
        for replica in replicas:
            replica.now += ENV_TIMEOUT_S / 3
        await other.http.post("/status-env", json={"env_id": talker})
    for _ in range(2):
        await one.post("/scored_data", group(env_id=1))
    await becomes(one, "/status", blocked_reason=WAITING)


async def test_the_policy_version_rises_at_both_replicas(replicas):
    one, other = replicas
    await one.started()
    await one.post("/policy_version", {"version": 3})
    lower = await other.post("/policy_version", {"version": 2})
    assert lower["policy_version"] == 3
    await becomes(other, "/status", policy_version=3)


async def test_the_same_key_at_both_replicas_is_kept_once(replicas):
    one, other = replicas
    await one.post("/register", TRAINER)
    twice = [
        replica.post("/scored_data", group(idempotency_key="k"))
        for replica in (one, other) * 3
    ]
    assert {answer["status"] for answer in await asyncio.gather(*twice)} == {"received"}
    await becomes(other, "/status", queue_size=1)
