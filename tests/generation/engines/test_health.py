"""Health of one server: probes, bounded waits and retries."""

from __future__ import annotations

import asyncio
import socket

import pytest

from atroposlib.errors import InferenceUnavailable
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines import health
from atroposlib.generation.engines.harness import ServerHarness
from atroposlib.generation.engines.health import HealthState
from atroposlib.generation.engines.openai import OpenAIServer
from atroposlib.testing.fake_inference import FakeInference

HELLO = [{"role": "user", "content": "hello"}]


def test_backoff_doubles_up_to_its_cap() -> None:
    assert [health.BACKOFF.pause_s(n) for n in (1, 2, 3, 9)] == [0.5, 1.0, 2.0, 10.0]


async def test_health_is_probed_once_and_without_generation(connect, fake) -> None:
    server = connect()
    for _ in range(3):
        await server.chat_completion(messages=HELLO)
    assert fake.health_checks == 1 and len(fake.requests) == 3


async def test_without_health_checks_no_probe_is_sent(connect, fake) -> None:
    await connect(health_check=False).chat_completion(messages=HELLO)
    assert fake.health_checks == 0


async def test_a_burst_of_first_calls_sends_one_probe(connect, fake) -> None:
    server = connect()
    await asyncio.gather(*(server.chat_completion(messages=HELLO) for _ in range(20)))
    assert fake.health_checks == 1


async def test_a_call_waits_for_a_server_that_is_still_loading(connect, fake) -> None:
    fake.health_next.extend([False, False])
    server = connect()
    await server.chat_completion(messages=HELLO)
    assert fake.health_checks == 3 and server.health.waiting_on is None


async def test_a_dead_server_raises_with_its_name_after_the_timeout(no_backoff) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        root = f"http://127.0.0.1:{unused.getsockname()[1]}"
    server = OpenAIServer(APIServerConfig(base_url=f"{root}/v1", timeout=1))
    with pytest.raises(
        InferenceUnavailable, match=f"{root} did not answer GET /health for 1 s"
    ):
        await server.chat_completion(messages=HELLO)
    assert not server.server_healthy
    assert root in (server.health.waiting_on or "")
    await server.close()


async def test_a_server_that_restarts_during_a_call_delays_the_call(no_backoff, fake) -> None:
    with fake.running() as root:
        port = int(root.rsplit(":", 1)[1])
        server = OpenAIServer(APIServerConfig(base_url=f"{root}/v1", timeout=600))
        await server.chat_completion(messages=HELLO)
    pending = asyncio.ensure_future(server.chat_completion(messages=HELLO))
    while server.health.state is not HealthState.DOWN:
        await asyncio.sleep(0)
    with FakeInference(reply=lambda prompt, i: "back").running(port):
        assert (await pending).choices[0].message.content == "back"
        await server.close()


def test_setting_the_health_attribute_sets_the_state_of_the_monitor() -> None:
    server = ServerHarness()
    assert server.server_healthy and not server.initialized
    assert server.check_task is None
    server.server_healthy = False
    assert server.health.state is HealthState.DOWN and server.initialized
    server.server_healthy = True
    assert server.health.state is HealthState.HEALTHY


async def test_a_server_that_stops_answering_is_reported_while_requests_run(
    connect, fake, monkeypatch
) -> None:
    server = connect()
    await server.chat_completion(messages=HELLO)
    assert (await server.state()).silent_s is None
    monkeypatch.setattr(health, "ANSWERED_S", 0.0)
    fake.health_next.extend([False, False])
    async with server.sem:
        first, second = (await server.state()).silent_s, (await server.state()).silent_s
        assert first is not None and second is not None and second > first
        assert (await server.state()).silent_s is None
    assert fake.health_checks == 4


async def test_an_idle_server_is_not_probed_for_its_state(connect, fake, monkeypatch) -> None:
    monkeypatch.setattr(health, "ANSWERED_S", 0.0)
    state = await connect().state()
    assert (state.running, state.silent_s, fake.health_checks) == (0, None, 0)
