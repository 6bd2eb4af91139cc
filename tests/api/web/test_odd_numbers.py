"""Odd numbers in every typed field and query: no 5xx, and index and store go on."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, strategies as st

from tests.api.harness import ENV, TRAINER, Api, group
from tests.examples import examples
from tests.odd_numbers import ODD, numbers, places, with_number

SERVER = {"url": "http://s:1", "silent_s": 1.0, "running": 1, "waiting": 1, "version": 1}
ROW = {
    "turns": 1,
    "tool_calls": 1,
    "metrics": {"a": 1.0},
    "timings": {"queue": 1.0, "generate": 1.0, "tools": 1.0, "score": 1.0},
}
GROUP = group(4, env_id=0) | {
    "inference_logprobs": [[1.0, -0.5]] * 4,
    "versions": [[-1, 1]] * 4,
    "advantages": [[0.0, 0.5]] * 4,
    "overrides": [{"set_advantage_to_zero": False, "a": 1}] * 4,
    "group_overrides": {"a": 1.0},
    "temperature": 1.0,
    "metadata": {"rows": [ROW] * 4, "item": 1, "a": 1.0},
}
CLAIM = {"generation": 1, "lease_s": 1.0, "wait_s": 0.0, "world_size": 1, "rank": 0}
BODIES = {
    "/register": TRAINER | {"max_staleness": 1, "holds": 1, "pid": 1},
    "/register-env": ENV | {"min_batch_allocation": 0.5},
    "/disconnect-env": {"env_id": 0},
    "/status-env": {"env_id": 0},
    "/scored_data": GROUP,
    "/scored_data_list": [GROUP],
    "/groups": [GROUP | {"idempotency_key": "k"}],
    "/admission": {"env_id": 0, "sequences": 1, "ttl_s": 1.0, "admission_id": "a"},
    "/admission/release": {"admission_id": "a", "env_id": 0},
    "/batches/claim": CLAIM,
    "/batches/1/ack": {"generation": 1, "epoch": 1, "rank": 0},
    "/batches/1/extend": {"generation": 1, "epoch": 1, "lease_s": 1.0},
    "/batches/1/commit": {"generation": 1},
    "/batches/1/rewind": {"generation": 1},
    "/policy_version": {"generation": 1, "version": 1, "incarnation": 1},
    "/heartbeat": {
        "role": "inference",
        "name": "n",
        "phase": "x",
        "details": {"a": 1.0, "b": 1},
        "servers": [SERVER | {"tokens_per_s": 1.0}],
        "announces": {"url": "http://s:1", "instance": "i", "started": 1.0, "version": 1},
    },
    "/steps": {
        "role": "trainer",
        "step": 1,
        "values": {"a": 1.0},
        "batch_no": 1,
        "env_id": 0,
    },
}
FIELDS = [(path, where) for path, body in BODIES.items() for where in places(body)]
# {} is the number. A GET of /batch would wait for a batch.
QUERIES = [
    "/status-env?env_id={}",
    "/explore/steps/{}/pin",
    "/batches/{}/notes?generation=1&epoch=1",
    "/batches/1/notes?generation={}&epoch=1",
    "/batches/1/notes?generation=1&epoch={}",
    "/batches/{}/shards/0?generation=1&epoch=1",
    "/batches/1/shards/{}?generation=1&epoch=1",
    "/batches/1/shards/0?generation={}&epoch=1",
    "/batches/1/shards/0?generation=1&epoch={}",
    "/batches/{}/ack",
    "/batches/{}/extend",
    "/batches/{}/commit",
    "/batches/{}/rewind",
    "/batches/{}/revive",
    "/batches/{}/drop",
    "/drops?reason=short&count={}&env_id=0",
    "/drops?reason=short&count=1&env_id={}",
    "/explore/batches/{}",
    "/explore/groups/{}",
    "/explore/groups/{}/rows/0",
    "/explore/groups/1/rows/{}",
    *(
        f"/explore/{page}?{name}={{}}"
        for page in ("rollouts", "batches", "curves", "histogram", "weights", "events")
        for name in (
            "step",
            "reward",
            "batch_no",
            "version",
            "diff_min",
            "limit",
            "bins",
            "since",
            "until",
            "points",
            "low",
            "high",
            "after",
        )
    ),
    "/explore/rollouts?reward={}..{}",
    "/explore/rollouts?after=[1,{},0]",
    "/explore/rollouts?after=[{},1,0]",
    "/explore/rollouts?sort=-reward&after=[{},1,{}]",
    "/explore/events?after={}",
]


@pytest.fixture
async def run(tmp_path):
    """A run with a trainer that claims and an environment."""
    api = Api(tmp_path, "sqlite")
    await api.started(commits=True, batch_size=8)
    yield api
    await api.end()


async def post(api, path, text):
    headers = {"content-type": "application/json"}
    return await api.http.post(path, content=text, headers=headers)


async def query(api, text):
    method = "GET" if text.startswith("/explore") and "pin" not in text else "POST"
    method = "GET" if "/shards/" in text or "/status-env" in text else method
    path = text.partition("?")[0]
    body = next((b for p, b in BODIES.items() if p.rpartition("/")[2] in path), {})
    if method == "GET" or not path.startswith("/batches") or "notes" in path:
        return await api.http.request(method, text)
    return await api.http.request(method, text, json=body)


async def require_alive(api):
    """A group that is posted now reaches the queue and the index, and so do those before it."""
    before = (await api.get("/status"))["queue_size"]
    assert await api.post("/scored_data", group(4, env_id=0)) == {"status": "received"}
    status = await api.get("/status")
    assert status["queue_size"] == before + 1
    indexer = api.service.context.indexer
    assert await asyncio.to_thread(indexer.flush, 600.0)
    shown = [gid for (gid,) in indexer.index.read("SELECT DISTINCT gid FROM rollout")]
    assert len(shown) == status["queue_size"]
    for gid in shown:
        for path in (f"/explore/groups/{gid}", f"/explore/groups/{gid}/rows/0"):
            assert (await api.http.get(path)).status_code == 200
    assert status["index_unfit"] == 0 and status["thread_failures"] == {}


@pytest.mark.parametrize("path", BODIES)
async def test_a_field_with_an_odd_number_is_bounded_or_refused(run, path):
    for where in places(BODIES[path]):
        for number in ODD:
            reply = await post(run, path, with_number(BODIES[path], where, number))
            assert reply.status_code < 500, (where, number[:30], reply.text)
    if path != "/register":  # which begins another run
        await require_alive(run)


@pytest.mark.parametrize("text", QUERIES)
async def test_a_query_with_an_odd_number_is_bounded_or_refused(run, text):
    for number in ODD:
        reply = await query(run, text.replace("{}", quote(number)))
        assert reply.status_code < 500, (number[:30], reply.text)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FIELDS), numbers)
async def test_drawn_numbers_in_drawn_fields_are_bounded_or_refused(run, field, number):
    path, where = field
    reply = await post(run, path, with_number(BODIES[path], where, number))
    assert reply.status_code < 500, (field, number[:30], reply.text)
