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
