"""Idempotency: a repeated call is answered again and sampled once."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest

from atroposlib.generation.proxy.main import ProxyLimits
from tests.generation.proxy.proxy_kit import scripted_proxy

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
WAIT_S = 600.0  # far longer than any step here takes


class Counting:
    """Replies that differ, so that a second sample would show."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, prompt: str, i: int) -> str:
        self.made += 1
        return f"sample {self.made}"


class Held:
    """The server waits here until it is let go."""

    def __init__(self, server) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        server.before = self

    async def __call__(self) -> None:
        self.reached.set()
        await self.go.wait()


def http_of(session) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {session.api_key}"}
    return httpx.AsyncClient(base_url=f"{session.base_url}/", headers=headers, timeout=WAIT_S)


async def text_of(http, body=HELLO, **headers) -> str:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = await http.post("chat/completions", json=body, headers=named)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("header", ["Idempotency_Key", "X_Stainless_Idempotency_Key"])
async def test_requests_with_the_same_key_get_the_same_answer_and_one_row(header):
    async with scripted_proxy(Counting()) as (proxy, _):
        session = await proxy.open_session()
        async with http_of(session) as http:
            texts = [await text_of(http, **{header: "k1"}) for _ in range(3)]
            other = await text_of(http, **{header: "k2"})
        assert (set(texts), other) == ({"sample 1"}, "sample 2")
        assert len(session.rows()) == 2


async def test_a_reused_key_with_other_content_is_a_conflict():
    async with scripted_proxy(Counting()) as (proxy, _):
        session = await proxy.open_session()
        async with http_of(session) as http:
            await text_of(http, Idempotency_Key="k")
            reply = await http.post(
                "chat/completions",
                json={**HELLO, "n": 2},
                headers={"Idempotency-Key": "k"},
            )
    assert (reply.status_code, reply.json()["error"]["type"]) == (409, "invalid_request_error")


async def test_duplicates_at_the_same_time_wait_for_one_generation():
    replies = Counting()
    async with scripted_proxy(replies) as (proxy, server):
        session = await proxy.open_session()
        held = Held(server)
        async with http_of(session) as http:
            calls = [asyncio.create_task(text_of(http, Idempotency_Key="k")) for _ in range(4)]
            await held.reached.wait()
            held.go.set()
            assert set(await asyncio.gather(*calls)) == {"sample 1"}
        assert replies.made == 1
        assert len(session.rows()) == 1


async def test_a_retry_of_the_openai_package_after_its_timeout_finds_the_first_answer():
    """No idempotency key is sent; the package only counts its attempts in a header."""
    replies = Counting()
    async with scripted_proxy(replies) as (proxy, server):
        session = await proxy.open_session()
        held = Held(server)
        client = openai.AsyncOpenAI(
            base_url=session.base_url, api_key=session.api_key, timeout=1.0, max_retries=9
        )
        async with client:
            call = asyncio.create_task(client.chat.completions.create(**HELLO))
            await held.reached.wait()
            while session._session.calls.running[0].attempt == 0:  # until it has tried again
                await asyncio.sleep(0.01)
            held.go.set()
            reply = await asyncio.wait_for(call, WAIT_S)
        assert reply.choices[0].message.content == "sample 1"
        assert replies.made == 1
        (row,) = session.rows()
        assert len(row.turns) == 1


async def test_a_retry_marked_by_its_header_is_deduplicated_and_a_repeated_question_is_not():
    async with scripted_proxy(Counting()) as (proxy, _):
        session = await proxy.open_session()
        async with http_of(session) as http:
            assert await text_of(http, x_stainless_retry_count="0") == "sample 1"
            assert await text_of(http, x_stainless_retry_count="0") == "sample 2"
            assert await text_of(http) == "sample 3"
            assert await text_of(http, x_stainless_retry_count="1") == "sample 3"
            assert await text_of(http, {**HELLO, "n": 2}, x_stainless_retry_count="1") == (
                "sample 4"
            )
        assert len(session.rows()) == 5


async def test_retries_of_two_equal_concurrent_questions_get_separate_answers():
    async with scripted_proxy(Counting()) as (proxy, server):
        session = await proxy.open_session()
        held = Held(server)
        async with http_of(session) as http:
            first = [asyncio.create_task(text_of(http)) for _ in range(2)]
            while len(server.asked) < 2:
                await asyncio.sleep(0)
            again = [
                asyncio.create_task(text_of(http, x_stainless_retry_count="1"))
                for _ in range(2)
            ]
            calls = session._session.calls
            while [call.attempt for call in calls.running] != [1, 1]:
                await asyncio.sleep(0)
            held.go.set()
            assert sorted(await asyncio.gather(*first)) == ["sample 1", "sample 2"]
            assert sorted(await asyncio.gather(*again)) == ["sample 1", "sample 2"]


async def test_a_call_that_failed_is_sampled_again_under_its_key():
    failures = [True]

    def flaky(prompt: str, i: int) -> str:
        if failures:
            failures.pop()
            raise RuntimeError("once")
        return "well"

    async with scripted_proxy(flaky) as (proxy, _):
        session = await proxy.open_session()
        async with http_of(session) as http:
            reply = await http.post(
                "chat/completions", json=HELLO, headers={"Idempotency-Key": "k"}
            )
            assert reply.status_code == 500
            assert await text_of(http, Idempotency_Key="k") == "well"
        assert len(session.rows()) == 1


async def test_a_disconnected_client_leaves_one_sample_and_no_row_until_it_retries():
    async with scripted_proxy(Counting()) as (proxy, server):
        session = await proxy.open_session()
        held = Held(server)
        async with http_of(session) as http:
            with pytest.raises(httpx.ReadTimeout):
                bound = httpx.Timeout(WAIT_S, read=0.2)  # it gives up once the request is sent
                await http.post("chat/completions", json=HELLO, timeout=bound)
        await held.reached.wait()
        (call,) = session._session.calls.running
        held.go.set()
        await call.task
        assert len(await session.nodes()) == 1
        assert session.rows() == []  # no action of the agent can follow from it
        async with http_of(session) as http:
            assert await text_of(http, x_stainless_retry_count="1") == "sample 1"
        assert len(session.rows()) == 1


async def test_a_waiting_stream_sends_keep_alive_frames():
    async with scripted_proxy(Counting(), limits=ProxyLimits(keep_alive_s=0.02)) as (
        proxy,
        server,
    ):
        session = await proxy.open_session()
        held = Held(server)
        lines = []
        async with http_of(session) as http:
            body = {**HELLO, "stream": True}
            async with http.stream("POST", "chat/completions", json=body) as reply:
                async for line in reply.aiter_lines():
                    lines.append(line)
                    if line.startswith(":"):
                        held.go.set()
        assert [line for line in lines if line][0] == ": still sampling"
        assert lines[-2] == "data: [DONE]"
        assert len(session.rows()) == 1


async def test_a_failed_stream_has_an_error_status_or_an_error_frame():
    def fail(prompt: str, i: int) -> str:
        raise RuntimeError("gone")

    async with scripted_proxy(fail, limits=ProxyLimits(keep_alive_s=0.05)) as (proxy, server):
        session = await proxy.open_session()
        client = openai.AsyncOpenAI(
            base_url=session.base_url, api_key=session.api_key, max_retries=0
        )
        async with client:
            with pytest.raises(openai.InternalServerError, match="gone"):
                await client.chat.completions.create(**HELLO, stream=True)
            held = Held(server)
            stream = await client.chat.completions.create(**HELLO, stream=True)
            held.go.set()
            with pytest.raises(openai.APIError, match="gone"):
                async for _ in stream:
                    pass
        assert session.rows() == []


async def test_a_session_that_is_closed_ends_its_calls():
    async with scripted_proxy(Counting()) as (proxy, server):
        session = await proxy.open_session()
        held = Held(server)
        async with http_of(session) as http:
            call = asyncio.create_task(http.post("chat/completions", json=HELLO))
            await held.reached.wait()
            await session.close()
            reply = await asyncio.wait_for(call, WAIT_S)
    assert (reply.status_code, "closed" in reply.text) == (404, True)
