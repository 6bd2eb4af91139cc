"""Requests of HTTP as requests of the engine."""

from __future__ import annotations

import asyncio
import json

from atroposlib.inference.engine.engine import PauseMode
from atroposlib.inference.http.app import create_app
from tests.inference.helpers import WAIT_S, ok


async def test_another_model_name_is_a_404(http):
    reply = await http.post("/v1/completions", json={"prompt": "abc", "model": "other"})
    assert reply.status_code == 404 and "'tiny' is" in reply.json()["error"]["message"]


async def test_max_tokens_beyond_the_context_is_cut_to_what_fits(http):
    body = await ok(http, "/generate", prompt="a" * 250, max_tokens=100, ignore_eos=True)
    assert len(body["token_ids"][0]) == 6 and body["finish_reasons"] == ["length"]


async def test_a_disconnected_client_frees_its_rows(engine):
    """Driven as an ASGI server would: the disconnect arrives while the request waits."""
    engine.pause(PauseMode.WAIT)
    body = json.dumps({"prompt": "abc", "n": 3, "max_tokens": 200}).encode()
    queued: asyncio.Event = asyncio.Event()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await queued.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "path": "/generate", "raw_path": b"/generate", "query_string": b"", "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        "scheme": "http",
        "server": ("engine", 80), "client": ("test", 1),
    }  # fmt: skip
    serving = asyncio.create_task(create_app(engine)(scope, receive, send))

    async def three_wait():
        while engine.num_waiting < 3:
            await asyncio.sleep(0)

    await asyncio.wait_for(three_wait(), WAIT_S)
    queued.set()
    await asyncio.wait_for(serving, WAIT_S)
    engine.set_weight_version(0)  # a command behind the cancel: it has been carried out
    assert engine.num_waiting == 0
