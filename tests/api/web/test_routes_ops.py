"""/health, /metrics and /events of the whole application."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest

from atroposlib.api.run.events import MAX_SUBSCRIBERS
from atroposlib.api.web import routes_ops
from atroposlib.errors import StoreError
from tests.api.harness import group
from tests.client.harness import registration, served_api


async def test_the_health_result_is_cached_briefly(api, monkeypatch):
    monkeypatch.setattr(routes_ops, "HEALTH_CACHE_S", 600.0)
    store, looks = api.app.state.service.store, []
    ask = store.ask
    monkeypatch.setattr(store, "ask", lambda query: looks.append(1) or ask(query))
    for _ in range(3):
        assert await api.get("/health") == {"status": "ok"}
    assert len(looks) == 1


async def test_health_fails_if_the_store_does_not_answer(api, monkeypatch):
    stuck = threading.Event()
    monkeypatch.setattr(routes_ops, "STORE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(api.app.state.service.store, "ask", lambda query: stuck.wait())
    reply = await api.http.get("/health")
    stuck.set()
    assert (reply.status_code, reply.json()["status"]) == (503, "store_silent")


async def test_health_fails_with_the_error_of_the_store(api, monkeypatch):
    def fail(query):
        raise StoreError("the disk is gone")

    monkeypatch.setattr(api.app.state.service.store, "ask", fail)
    reply = await api.http.get("/health")
    assert (reply.status_code, reply.json()["detail"]) == (503, "the disk is gone")


async def test_metrics_count_the_groups_and_batches_of_the_api(api):
    [env_id] = await api.started(batch_size=2)
    await api.post("/scored_data", group(env_id=env_id))
    await api.post("/scored_data", group(scores=[]))
    reply = await api.http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = reply.text.splitlines()
    assert 'atropos_groups_in_total{env="e_0",media="json"} 1.0' in lines
    assert 'atropos_tokens_in_total{env="e_0"} 2.0' in lines
    assert 'atropos_requests_refused_total{reason="invalid"} 1.0' in lines
    assert 'atropos_sequences{state="queued"} 2.0' in lines
    assert any(
        line.startswith('atropos_http_requests_total{method="POST",route="/scored_data"')
        for line in lines
    )
    assert not any("_created" in line for line in lines)


async def test_events_are_streamed_until_the_process_stops(api):
    reading = asyncio.ensure_future(api.http.get("/events", headers={"last-event-id": "x"}))
    await api.started(batch_size=2)
    await api.post("/scored_data", group())
    api.app.state.service.context.stop_waiting()
    reply = await reading
    assert reply.headers["content-type"].startswith("text/event-stream")
    kinds = [line[7:] for line in reply.text.splitlines() if line.startswith("event: ")]
    assert kinds == ["registered", "started", "env_joined", "groups"]


def test_events_are_streamed_over_a_real_socket_as_they_occur():
    with served_api() as url, httpx.stream("GET", f"{url}/events", timeout=600) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "retry: 2000"
        body = registration().model_dump()
        assert httpx.post(f"{url}/register", json=body).status_code == 200
        assert next(line for line in lines if line.startswith("event:")) == "event: registered"


async def test_the_number_of_event_readers_is_bounded(api):
    events = api.app.state.service.events
    readers = [events.subscribe() for _ in range(MAX_SUBSCRIBERS)]
    reply = await api.http.get("/events")
    assert (reply.status_code, reply.json()["status"]) == (503, "too_many_readers")
    readers[0].close()
    assert not events.full


@pytest.mark.parametrize(
    "messages", [["http.disconnect"], ["http.request", "http.disconnect"]]
)
async def test_a_disconnected_reader_frees_its_slot(api, messages):
    events = api.app.state.service.events
    others = [events.subscribe() for _ in range(MAX_SUBSCRIBERS - 1)]
    pending = list(messages)

    async def receive():
        return {"type": pending.pop(0), "body": b"", "more_body": False}

    async def send(message):
        pass

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "path": "/events",
        "raw_path": b"/events",
        "query_string": b"",
        "headers": [(b"host", b"testserver")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    await api.app(scope, receive, send)
    assert not events.full
    assert len(others) == MAX_SUBSCRIBERS - 1


MATH = {"max_token_length": 64, "desired_name": "math", "weight": 1.0, "group_size": 2}
CODE = MATH | {"desired_name": "code"}


async def _two_environments(api):
    """A run of batches of 4 with six groups of 2 queued of each environment."""
    math, code = await api.started(batch_size=4, envs=(MATH, CODE), commits=True)
    for mark in range(6):
        await api.post("/scored_data", group(mark=10 + mark, env_id=math))
        await api.post("/scored_data", group(mark=20 + mark, env_id=code))
    return math, api.service.context.view.generation


async def test_a_paused_environment_waits_with_its_groups_and_goes_on(durable):
    api = durable
    math, generation = await _two_environments(api)
    told = await api.post("/steer", {"env": "math", "state": "paused"})
    assert told == {"steering": {"math": {"state": "paused"}}}
    status = await api.get("/status-env", params={"env_id": math})
    assert (status["steered"], status["unallocated_fraction"]) == ("paused", 0.0)
    await api.restart()
    batches = [await api.trained(generation) for _ in range(4)]
    assert batches == [[20, 21], [22, 23], [24, 25], None]
    run = await api.get("/status")
    assert run["blocked_reason"].startswith("math_0 is paused by an operator; ")
    assert run["verdict"]["findings"][0]["key"] == "paused-by-operator"
    assert run["verdict"]["state"] == "waiting"
    await api.post("/steer", {"env": "math", "state": "running"})
    assert await api.trained(generation) == [10, 11]
    assert "steered" not in await api.get("/status-env", params={"env_id": math})


async def test_a_drained_environment_starts_nothing_and_its_groups_are_trained(api):
    math, generation = await _two_environments(api)
    await api.post("/steer", {"env": "math_0", "state": "draining", "max_rollouts": 2})
    status = await api.get("/status-env", params={"env_id": math})
    assert (status["steered"], status["max_rollouts"]) == ("draining", 2)
    trained = [mark for _ in range(6) for mark in await api.trained(generation)]
    assert sorted(trained) == [*range(10, 16), *range(20, 26)]


async def test_a_weight_rules_the_next_batches_and_is_given_back(api):
    _, generation = await _two_environments(api)
    await api.post("/steer", {"env": "math", "weight": 1000})
    assert [await api.trained(generation) for _ in range(3)] == [[10, 11], [12, 13], [14, 15]]
    await api.post("/steer", {"env": "math", "weight": None})
    shares = (await api.get("/status"))["shares"]
    assert [(share["weight"], share["own_weight"]) for share in shares] == [(1.0, None)] * 2


async def test_a_minimum_of_a_paused_environment_blocks_no_batch(api):
    envs = (MATH | {"min_batch_allocation": 0.5}, CODE)
    _, code = await api.started(batch_size=4, envs=envs, commits=True)
    for mark in (1, 2):
        await api.post("/scored_data", group(mark=mark, env_id=code))
    generation = api.service.context.view.generation
    assert await api.trained(generation) is None
    await api.post("/steer", {"env": "math", "state": "paused"})
    assert await api.trained(generation) == [1, 2]


async def test_steering_is_an_event_of_the_run_and_a_wrong_call_changes_nothing(durable):
    api = durable
    await _two_environments(api)
    await api.post("/steer", {"env": "math", "weight": 2.5})
    assert (await api.http.post("/steer", json={"env": "nth"})).status_code == 404
    wrong = [{"env": "math", "weight": -1}, {"env": "math", "wait": 1}, {"state": "paused"}]
    for body in wrong:
        assert (await api.http.post("/steer", json=body)).status_code == 422
    api.service.context.indexer.flush()
    kept = (await api.get("/explore/events"))["events"]
    [event] = [one for one in kept if one["kind"] == "steered"]
    assert event["fields"] == {"env": "math", "weight": 2.5}


async def test_a_paused_environment_gets_no_admission(api):
    math, _ = await api.started(envs=(MATH, CODE), max_staleness=1)
    await api.post("/steer", {"env": "math", "state": "paused"})
    reply = await api.post("/admission", {"env_id": math, "sequences": 2})
    assert reply["granted"] == 0 and "paused by an operator" in reply["blocked_reason"]
