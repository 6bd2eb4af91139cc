from __future__ import annotations

import asyncio
import threading
from typing import Any, get_args

import pytest

from atroposlib.errors import ConfigError, InferenceUnavailable
from atroposlib.generation.configs import APIServerConfig, ServerBaseline, ServerType
from atroposlib.generation.engines.openai import OpenAIServer
from atroposlib.generation.engines.sglang import SGLangServer
from atroposlib.generation.engines.trl import TrlVllmServer
from atroposlib.generation.engines.vllm import VLLMServer
from atroposlib.generation.proxy.in_process import serving_proxy
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.generation.sessions.dummy import DummyManagedServer
from atroposlib.generation.sessions.managed import ManagedServer
from atroposlib.testing.fake_shapes import END, encode
from atroposlib.wire import ServerDirectory, ServerEntry

HELLO = [{"role": "user", "content": "hello"}]


# --- decisions ---------------------------------------------------------------------------


# --- construction ------------------------------------------------------------------------


def test_a_single_server_config_is_used_unchanged() -> None:
    config = APIServerConfig(base_url="http://localhost:1/v1", api_key="k")
    (server,) = ServerManager(config).servers
    assert server.config is config


def test_a_baseline_gets_local_addresses_and_keeps_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    baseline = ServerBaseline(model_name="m", server_type="vllm", timeout=5)
    servers = ServerManager(baseline).servers
    assert [server.base_url for server in servers] == [
        f"http://localhost:{port}/v1" for port in (9004, 9005, 9006, 9007)
    ]
    assert {(s.config.model_name, s.config.timeout, s.config.api_key) for s in servers} == {
        ("m", 5, "x")
    }
    assert all(isinstance(server, VLLMServer) for server in servers)


@pytest.mark.parametrize(("is_training", "split"), [(True, "train"), (False, "eval")])
async def test_a_caller_waits_for_a_slot_of_its_own_split(is_training, split) -> None:
    sizes = {"num_max_requests_at_once": 1, "num_requests_for_eval": 1}
    manager = ServerManager([APIServerConfig(base_url="http://a/v1", **sizes)])
    stats = manager.servers[0]._stats_of(split)
    with stats.track():
        waiting = asyncio.ensure_future(manager.wait_for_sem(is_training))
        await manager.wait_for_sem(not is_training)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 600)


def test_one_manager_holds_servers_of_different_types() -> None:
    manager = ServerManager(
        [
            APIServerConfig(base_url="http://a/v1", server_type="vllm"),
            APIServerConfig(base_url="http://b/v1"),
        ]
    )
    assert [type(server) for server in manager.servers] == [VLLMServer, OpenAIServer]


def test_every_type_of_the_settings_has_a_client() -> None:
    manager = ServerManager(
        [
            APIServerConfig(base_url="http://a/v1", server_type=name)
            for name in get_args(ServerType)
        ]
    )
    assert [type(server) for server in manager.servers] == [
        OpenAIServer,
        TrlVllmServer,
        SGLangServer,
        VLLMServer,
    ]


# --- calls -------------------------------------------------------------------------------


async def test_a_burst_of_first_calls_is_spread_over_the_servers(manage) -> None:
    manager, fakes = manage(3)
    await asyncio.gather(*(manager.chat_completion(messages=HELLO) for _ in range(12)))
    assert [len(fake.requests) for fake in fakes] == [4, 4, 4]


async def test_the_split_is_passed_to_the_server(manage) -> None:
    manager, _ = manage(1)
    await manager.chat_completion(messages=HELLO, split="eval")
    await manager.completion(prompt="hi", split="train")
    (server,) = manager.servers
    assert (len(server.eval_request_timings), len(server.request_timings)) == (1, 1)


async def test_a_dead_server_is_left_out_until_it_answers_again(manage) -> None:
    manager, fakes = manage(2)
    fakes[0].healthy = False
    for _ in range(4):  # the first of them finds out
        await manager.chat_completion(messages=HELLO)
    assert not manager.servers[0].server_healthy
    assert (len(fakes[0].requests), len(fakes[1].requests)) == (0, 4)


async def test_an_idle_server_that_recovers_is_used_again(manage) -> None:
    manager, fakes = manage(2)
    fakes[0].health_next.append(False)
    assert not await manager.servers[0].health._probe_once()
    while not manager.servers[0].server_healthy:
        await manager.chat_completion(messages=HELLO)
    await manager.chat_completion(messages=HELLO)
    assert fakes[0].requests  # several where it recovered during a call of the loop


async def test_as_many_dedicated_sessions_as_slots_do_not_deadlock(manage) -> None:
    manager, fakes = manage(1, num_max_requests_at_once=2)

    async def session() -> None:
        async with manager.dedicated_server() as server:
            await server.chat_completion(messages=HELLO)

    await asyncio.gather(*(session() for _ in range(4)))
    assert len(fakes[0].requests) == 4 and manager.servers[0].sessions == 0


async def test_sessions_are_spread_over_the_servers(manage) -> None:
    manager, _ = manage(2)
    async with manager.dedicated_server() as first, manager.dedicated_server() as second:
        assert first is not second


async def test_a_lower_weight_closes_slots_and_a_higher_one_opens_them(manage) -> None:
    manager, (fake,) = manage(1, num_max_requests_at_once=4)
    await manager.update_weight(0.25)
    fake.hold = threading.Event()
    calls = [asyncio.ensure_future(manager.chat_completion(messages=HELLO)) for _ in range(4)]
    while fake.running_now < 1:
        await asyncio.sleep(0.001)
    assert manager.servers[0].sem.in_use == 1
    await manager.update_weight(1.0)
    while fake.running_now < 4:
        await asyncio.sleep(0.001)
    fake.hold.set()
    await asyncio.gather(*calls)


async def test_metrics_of_every_server_are_kept(manage) -> None:
    manager, _ = manage(2)
    await asyncio.gather(*(manager.chat_completion(messages=HELLO) for _ in range(2)))
    metrics = await manager.wandb_metrics({})
    assert {"server/server_0_request_time_avg", "server/server_1_request_time_avg"} <= set(
        metrics
    )


# --- sessions ----------------------------------------------------------------------------


async def test_a_managed_session_is_removed_at_its_end(manage, tokenizer: Any) -> None:
    manager, _ = manage(1, "vllm")
    async with manager.managed_server(tokenizer=tokenizer) as managed:
        assert isinstance(managed, ManagedServer)
        await managed.chat_completion(messages=HELLO)
        assert len(managed.get_state()["nodes"]) == 1
    assert managed.get_state()["nodes"] == []


async def test_a_managed_session_can_name_its_server(manage, tokenizer: Any) -> None:
    manager, fakes = manage(2, "vllm")
    wanted = manager.servers[1].base_url
    async with manager.managed_server(tokenizer, base_url=wanted) as managed:
        await managed.chat_completion(messages=HELLO)
    assert [len(fake.requests) for fake in fakes] == [0, 1]
    with pytest.raises(ConfigError, match="no server at http://other"):
        async with manager.managed_server(tokenizer, base_url="http://other"):
            pass


async def test_placeholder_tokens_are_rejected_unless_allowed(
    manage, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, _ = manage(1)
    monkeypatch.delenv("ATROPOS_ALLOW_DUMMY_MANAGED_SERVER", raising=False)
    with pytest.raises(NotImplementedError, match="ATROPOS_ALLOW_DUMMY_MANAGED_SERVER=1"):
        async with manager.managed_server():
            pass
    monkeypatch.setenv("ATROPOS_ALLOW_DUMMY_MANAGED_SERVER", "yes")
    async with manager.managed_server() as managed:
        assert isinstance(managed, DummyManagedServer)
        completion = await managed.chat_completion(messages=HELLO, n=2)
        first, second = managed.nodes_for(completion)
        assert first.tokens == list(range(128)) and first.masked_tokens[:2] == [-100, 1]
        assert first.metadata == {"finish_reason": "stop", "dummy_tokens": True}
        assert first.full_text.startswith("user:hello\n\nassistant:reply ")
        assert first.full_text != second.full_text


# --- the harness -------------------------------------------------------------------------


PROMPT = encode("<|user|>abc<|end|><|assistant|>")


async def test_the_announced_version_is_the_one_read_before_the_request(manage) -> None:
    manager, (fake,) = manage(1, "vllm")
    fake.weight_version = None
    fake.reports_spans = fake.reports_header = False
    (early,) = await manager.generate(PROMPT)
    manager.announce_version(3)
    fake.on_request = lambda path, body: manager.announce_version(4)
    (straddling,) = await manager.generate(PROMPT)
    (later,) = await manager.generate(PROMPT)
    found = [set(output.versions) for output in (early, straddling, later)]
    assert found == [{-1}, {3}, {4}]
    fake.reports_spans, fake.weight_version = True, 9
    (reported,) = await manager.generate(PROMPT)
    assert set(reported.versions) == {9}


async def test_a_proxy_without_an_address_is_an_error(manage) -> None:
    manager, _ = manage(1, "vllm", manager={"use_proxy": True})
    with pytest.raises(ConfigError, match="use_proxy: there is no proxy_url"):
        async with manager.managed_server():
            pass


async def test_the_proxy_environment_variable_is_logged_once(
    manage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ATROPOS_PROXY_URL", "http://proxy:9100")
    manager, _ = manage(1, "vllm")
    assert (manager.proxy_url, manager.use_proxy) == ("http://proxy:9100", True)
    assert [m for m in caplog.messages if "ATROPOS_PROXY_URL" in m] == [
        "ATROPOS_PROXY_URL is set: managed sessions go to the proxy at http://proxy:9100"
    ]
    named, _ = manage(1, "vllm", manager={"proxy_url": "http://other"})
    assert named.proxy_url == "http://other"


async def test_managed_sessions_use_the_configured_proxy(
    manage, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind, (fake,) = manage(1, "vllm")
    async with serving_proxy(behind, tokenizer, "m") as proxy:
        monkeypatch.setenv("ATROPOS_PROXY_TOKEN", proxy.admin_token)
        manager, (unused,) = manage(1, "vllm", manager={"proxy_url": proxy.url})
        async with manager.managed_server() as managed:
            chat = await managed.chat_completion(messages=HELLO)
            assert chat.choices[0].message.content.startswith("reply ")
            await managed.fetch_state()
            (node,) = managed.get_state()["nodes"]
            assert node.tokens[-1] == END
        assert (len(fake.requests), unused.requests) == (1, [])
        manager.use_proxy = False  # read at each call
        async with manager.managed_server(tokenizer) as managed:
            await managed.chat_completion(messages=HELLO)
        assert (len(fake.requests), len(unused.requests)) == (1, 1)


# --- the directory of the rollout API -----------------------------------------------------


def directory(*urls: str, complete: bool = True) -> ServerDirectory:
    fields = {"instance": "i", "started": 0, "age_s": 0, "takes_part": True}
    servers = [ServerEntry(url=url, name=url, **fields) for url in urls]
    return ServerDirectory(instance="api", complete=complete, servers=servers)


def following(**settings: Any) -> ServerManager:
    template = {"base_url": "directory://", "server_type": "vllm", "model_name": "fake"}
    return ServerManager([APIServerConfig(**template | settings)])


async def test_servers_of_the_directory_have_the_settings_of_its_entry() -> None:
    manager = following(timeout=7)
    manager.announce_version(3)
    await manager.update_weight(0.5)
    (server,) = await manager.follow(directory("http://a:1"))
    assert (server.base_url, server.config.timeout) == ("http://a:1/v1", 7)
    assert server.announced_version == 3 and server.headroom("train") == 256
    assert await manager.follow(directory("http://a:1")) == []
    await manager.close()


async def test_a_call_that_waits_for_a_lost_server_goes_to_the_one_that_replaces_it(
    fake_url: str,
) -> None:
    manager = following()
    await manager.follow(directory("http://127.0.0.1:9"))  # nothing listens there
    waiting = asyncio.ensure_future(manager.chat_completion(messages=HELLO, max_tokens=5))
    while manager.waiting_on is None:
        await asyncio.sleep(0.01)
    await manager.follow(directory(fake_url))
    assert len((await asyncio.wait_for(waiting, 600)).choices) == 1
    assert [one.base_url for one in manager.servers] == [f"{fake_url}/v1"]
    await manager.close()


async def test_a_request_that_runs_on_a_server_that_left_goes_to_another(
    fake_url: str, no_backoff: None
) -> None:
    manager, accepted = following(), []
    hangs = await asyncio.start_server(
        lambda _, writer: accepted.append(writer), "127.0.0.1", 0
    )
    lost = f"http://127.0.0.1:{hangs.sockets[0].getsockname()[1]}"
    await manager.follow(directory(lost))
    manager.servers[0].health.report(True)
    asked = asyncio.ensure_future(manager.chat_completion(messages=HELLO, max_tokens=5))
    while not manager.servers[0].train_stats.slots.in_use:
        await asyncio.sleep(0.01)
    hangs.close()
    await manager.follow(directory(fake_url))
    assert len((await asyncio.wait_for(asked, 600)).choices) == 1
    await manager.close()
    for writer in accepted:
        writer.close()
        await writer.wait_closed()


async def test_a_held_server_ends_its_calls_and_gets_no_further_until_it_is_released(
    fake_url: str,
) -> None:
    manager, other = following(), "http://127.0.0.1:9"
    await manager.follow(directory(fake_url, other))
    held_server = manager.servers[0]
    listed = directory(fake_url, other)
    listed.servers[0] = listed.servers[0].model_copy(
        update={"held": True, "takes_part": False}
    )
    running = asyncio.ensure_future(held_server.chat_completion(messages=HELLO, max_tokens=5))
    assert await manager.follow(listed) == []
    assert [server.base_url for server in manager.servers] == [f"{other}/v1"]
    assert len((await asyncio.wait_for(running, 600)).choices) == 1
    assert await manager.follow(directory(fake_url, other)) == [held_server]
    await manager.close()


async def test_a_call_without_any_server_is_refused_at_once() -> None:
    with pytest.raises(InferenceUnavailable, match="directory of the rollout API"):
        await following().chat_completion(messages=HELLO)


def test_a_directory_is_the_only_server_of_its_list() -> None:
    both = [APIServerConfig(base_url=url) for url in ("directory://", "http://a/v1")]
    with pytest.raises(ConfigError, match="only server"):
        ServerManager(both)
