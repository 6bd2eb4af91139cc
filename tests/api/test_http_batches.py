"""Batches over HTTP: claims, acks, GET /batch, and what a restart resumes."""

from __future__ import annotations

import asyncio
import json

from atroposlib.api.intake import read_group
from atroposlib.api.records import NewGroup
from tests.api.harness import ENV, TRAINER, group, marks


async def claimed(api, generation, **more):
    return await api.post("/batches/claim", {"generation": generation} | more)


async def test_claim_and_ack_hand_over_each_group_once(api):
    generation = (await api.post("/register", TRAINER))["generation"]
    await api.post("/scored_data_list", [group(mark=1), group(mark=2)])
    first = await claimed(api, generation)
    assert (first["batch_no"], first["epoch"], marks(first)) == (1, 1, [1, 2])
    again = await claimed(api, generation)
    assert (again["batch_no"], again["epoch"], marks(again)) == (1, 2, [1, 2])
    old = {"generation": generation, "epoch": 1}
    late = await api.http.post("/batches/1/ack", json=old)
    assert (late.status_code, late.json()["status"]) == (409, "fenced")
    new = {"generation": generation, "epoch": 2}
    assert await api.post("/batches/1/ack", new) == {"status": "acked", "first": True}
    assert await api.post("/batches/1/ack", new) == {"status": "acked", "first": False}
    empty = await claimed(api, generation)
    assert empty["batch"] is None and "empty" in empty["blocked_reason"]
    assert (await api.get("/status"))["batches_acked"] == 1


async def test_a_claim_needs_the_current_trainer(api):
    reply = await api.http.post("/batches/claim", json={"generation": 1})
    assert (reply.status_code, reply.json()["status"]) == (409, "not_registered")
    old = (await api.post("/register", TRAINER))["generation"]
    await api.post("/register", TRAINER)
    reply = await api.http.post("/batches/claim", json={"generation": old})
    assert (reply.status_code, reply.json()["status"]) == (409, "fenced")


async def test_a_waiting_claim_gets_the_batch_as_soon_as_it_forms(api):
    generation = (await api.post("/register", TRAINER))["generation"]
    waiting = asyncio.create_task(claimed(api, generation, wait_s=30))
    while (await api.get("/status"))["state"] != "STARTED":
        await asyncio.sleep(0)
    await api.post("/scored_data", group(2))
    await api.post("/scored_data", group(2))
    assert len((await waiting)["batch"]) == 2


async def test_a_batch_reply_that_did_not_get_through_comes_again(api):
    await api.started()
    await api.post("/scored_data_list", [group(mark=1), group(mark=2), group(4, mark=3)])
    request = [{"type": "http.request", "body": b"", "more_body": False}]
    sent = []

    async def receive():
        return request.pop() if request else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/batch",
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
    }
    await api.app(scope, receive, send)
    assert sent  # the server cannot know that nobody read it, but it asked
    assert marks(await api.get("/batch")) == [1, 2]
    assert marks(await api.get("/batch")) == [3]
    assert (await api.get("/status"))["current_step"] == 2


async def test_responses_are_gzipped_only_where_it_is_cheap(api):
    await api.post("/scored_data", group(100))
    reply = await api.http.get("/latest_example", headers={"Accept-Encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip" and len(reply.json()["scores"]) == 100
    plain = await api.http.get("/latest_example", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.json() == reply.json()


# --- restarts -----------------------------------------------------------------------


async def test_a_restart_of_the_api_resumes_the_run(durable):
    api = durable
    [env_id] = await api.started(envs=(ENV | {"group_size": 4},))
    await api.post("/policy_version", {"version": 3})
    await api.post("/scored_data_list", [group(4, mark=1), group(4, mark=2)])
    await api.post("/scored_data", group(3, mark=3, env_id=env_id))
    assert marks(await api.get("/batch")) == [1]
    before = await api.get("/status")
    await api.restart()
    assert await api.get("/status") == before
    assert marks(await api.get("/batch")) == [2]  # the first reply had gone out whole
    complete = await api.post("/scored_data", group(1, mark=4, env_id=env_id))
    assert complete == {"status": "buffered", "buffer_size": 0}  # the original's words
    assert marks(await api.get("/batch")) == [3, 4]
    assert (await api.post("/status-env", {"env_id": env_id}))["policy_version"] == 3


async def test_an_unacked_claim_comes_again_after_a_restart(durable):
    api = durable
    generation = (await api.post("/register", TRAINER))["generation"]
    await api.post("/scored_data", group(4))
    first = await claimed(api, generation)
    await api.restart()
    again = await claimed(api, generation)
    assert (again["batch_no"], again["epoch"]) == (first["batch_no"], 2)
    assert again["batch"] == first["batch"]


async def test_buffered_groups_that_add_up_at_a_restart_are_released(durable):
    api = durable
    [env_id] = await api.started(envs=(ENV | {"group_size": 4},))
    await api.post("/scored_data", group(2, env_id=env_id))
    # As if the API had been killed between the post and the release that it causes.
    payload = read_group(json.dumps(group(2, env_id=env_id)).encode()).payload
    service = api.app.state.service
    service.store.put([NewGroup(payload, 2, env=env_id, buffered=True)])
    await api.restart()
    assert len((await api.get("/batch"))["batch"]) == 2


async def test_a_full_store_is_a_503_with_a_time_to_come_back(durable):
    api = durable
    api.app.state.service.store._free_bytes = lambda _: 0
    reply = await api.http.post("/scored_data", json=group())
    assert (reply.status_code, reply.json()["status"]) == (503, "store_full")
    assert int(reply.headers["retry-after"]) > 0
