"""Third-party backends written against the hooks of the original."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.harness import (
    ServerHarness,
    create_chat_completion,
    create_completion,
)
from atroposlib.generation.engines.vllm import VLLMServer
from atroposlib.generation.routing.manager import ServerManager

HELLO = [{"role": "user", "content": "hello"}]
FOUR = ([1, 2], [[3, 4]], [[-0.5, -0.25]], ["stop"])
CONFIG = APIServerConfig(base_url="http://nowhere.invalid/v1", model_name="m", timeout=5)


class OldServer(APIServer):
    """Only the hooks, with an endless health check as in the original."""

    async def check_server_status_task(self, chat_completion: bool = True) -> None:
        while True:
            self.server_healthy = True
            await asyncio.sleep(3600)

    async def _chat_completion_wrapper(self, **kwargs: Any) -> Any:
        assert kwargs["model"] == "m" and "split" not in kwargs
        return create_chat_completion("hi", n=kwargs.get("n", 1))

    async def _completion_wrapper(self, **kwargs: Any) -> Any:
        return create_completion("4")

    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> Any:
        return FOUR


async def test_token_ids_among_the_stop_strings_have_a_field_of_their_own() -> None:
    harness = ServerHarness()
    harness.set_desired_completion("a", create_completion("b"))
    await harness.completion(prompt="a", stop=["x", 7], stop_token_ids=[3])
    await harness.completion(prompt="a", stop=7)
    await harness.completion(prompt="a", stop="x")
    sent = [(call.get("stop"), call.get("stop_token_ids")) for call in harness.calls]
    assert sent == [(["x"], [3, 7]), (None, [7]), ("x", None)]


async def test_semaphores_of_a_test_do_not_take_part_in_the_weight() -> None:
    harness = ServerHarness()
    harness.sem = harness.eval_sem = asyncio.Semaphore(1)
    await harness.update_weight(0.5)
    assert harness.train_stats.slots.weight == harness.eval_stats.slots.weight == 0.5
    assert harness.headroom("eval") == 32


async def test_a_backend_with_only_the_old_hooks_serves_every_call(no_backoff: None) -> None:
    manager = ServerManager([CONFIG], server_class=OldServer)
    (server,) = manager.servers
    assert (server.initialized, server.check_task, server.server_healthy) == (
        False,
        None,
        True,
    )
    chat = await manager.chat_completion(messages=HELLO, n=2, split="eval")
    assert [choice.message.content for choice in chat.choices] == ["hi", "hi"]
    assert (await manager.completion(prompt="2+2=")).choices[0].text == "4"
    assert await manager.tokens_and_logprobs_completion(prompt="x") == FOUR
    manager.announce_version(6)
    (output,) = await manager.generate([1, 2])
    assert (output.tokens, output.logprobs) == (FOUR[1][0], FOUR[2][0])
    assert output.versions == [6, 6]
    with pytest.raises(NotImplementedError, match="OldServer does not implement get_logprobs"):
        await manager.get_logprobs(input_ids=[1])
    assert server.initialized and server.check_task is not None
    await manager.close()
    assert server.check_task is None


@pytest.mark.parametrize("says", [True, None, False])
async def test_a_check_may_set_or_return_its_result(
    no_backoff: None, says: bool | None
) -> None:
    class Checked(OldServer):
        async def check_server_status_task(self, chat_completion: bool = True) -> Any:
            if says is None:
                self.server_healthy = True
            return says

    server = Checked(CONFIG.model_copy(update={"timeout": 1}))
    if says is False:
        server.health.timeout_s = 0.02
        with pytest.raises(Exception, match="nowhere.invalid did not answer"):
            await server.completion(prompt="x")
        assert not server.server_healthy
    else:
        await server.completion(prompt="x")
        assert server.server_healthy
    await server.close()


async def test_a_custom_check_can_mark_a_server_down_and_up_again(
    no_backoff: None,
) -> None:
    server = OldServer(CONFIG)
    await server.completion(prompt="x")
    server.server_healthy = False
    call = asyncio.ensure_future(server.completion(prompt="x"))
    while server.health.waiting_on is None:
        await asyncio.sleep(0)
    assert "nowhere.invalid" in server.health.waiting_on
    server.server_healthy = True
    await call
    await server.close()


async def test_a_backend_that_overrides_the_public_call_is_called_through_it() -> None:
    class Stub(OldServer):
        def __init__(self) -> None:  # like a mock, without the setup of the base
            self.config = CONFIG
            self.asked: list[dict[str, Any]] = []

        async def tokens_and_logprobs_completion(self, **kwargs: Any) -> Any:
            self.asked.append(kwargs)
            return FOUR

    stub = Stub()
    (output,) = await stub.generate([1, 2], split="eval", stop="x")
    assert output.tokens == [3, 4] and output.versions == [-1, -1]
    (asked,) = stub.asked
    assert (asked["input_ids"], asked["split"], asked["stop"]) == ([1, 2], "eval", "x")


async def test_a_subclass_of_a_backend_is_called_through_the_hook_it_overrides(
    fake, fake_url: str
) -> None:
    class Recorded(VLLMServer):
        async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> Any:
            answer = await super()._tokens_and_logprobs_completion_wrapper(**kwargs)
            recorded.append(answer)
            return answer

    recorded: list[Any] = []
    server = Recorded(APIServerConfig(base_url=f"{fake_url}/v1", server_type="vllm"))
    (output,) = await server.generate([5, 7])
    await server.close()
    assert recorded[0][1] == [output.tokens]


async def test_an_object_in_place_of_a_server_is_used_unchanged(tokenizer: Any) -> None:
    class Standin:
        config = CONFIG

        async def tokens_and_logprobs_completion(self, **kwargs: Any) -> Any:
            return kwargs["input_ids"], *FOUR[1:]

        async def chat_completion(self, **kwargs: Any) -> Any:
            return create_chat_completion("hi")

    manager = ServerManager([CONFIG])
    standin: Any = Standin()
    manager.servers = [standin]
    assert (await manager.chat_completion(messages=HELLO)).choices[0].message.content == "hi"
    async with manager.dedicated_server() as server:
        assert server is standin
    async with manager.managed_server(tokenizer) as managed:
        (node,) = managed.nodes_for(await managed.chat_completion(messages=HELLO))
    assert node.tokens[-2:] == FOUR[1][0] and node.versions[-2:] == [-1, -1]


async def test_a_method_replaced_by_a_test_is_called(tokenizer: Any) -> None:
    manager = ServerManager([CONFIG.model_copy(update={"server_type": "vllm"})])

    async def answer(**kwargs: Any) -> Any:
        return kwargs["input_ids"], *FOUR[1:]

    manager.servers[0].tokens_and_logprobs_completion = answer  # type: ignore[assignment]
    async with manager.managed_server(tokenizer) as managed:
        (node,) = managed.nodes_for(await managed.chat_completion(messages=HELLO))
    assert node.tokens[-2:] == FOUR[1][0]


# --- the harness -------------------------------------------------------------------------


async def test_train_and_eval_calls_have_separate_slots(connect, fake) -> None:
    server = connect(num_max_requests_at_once=2, num_requests_for_eval=1)
    fake.hold = threading.Event()
    train = [asyncio.ensure_future(server.chat_completion(messages=HELLO)) for _ in range(4)]
    evals = [
        asyncio.ensure_future(server.chat_completion(messages=HELLO, split="eval"))
        for _ in range(3)
    ]
    while fake.running_now < 3:
        await asyncio.sleep(0.001)
    assert (server.sem.in_use, server.sem.waiting) == (2, 2)
    assert (server.eval_sem.in_use, server.eval_sem.waiting) == (1, 2)
    assert (server.headroom("train"), server.headroom("eval")) == (-2, -2)
    fake.hold.set()
    await asyncio.gather(*train, *evals)
    assert fake.most_at_once == 3
    assert (len(server.request_timings), len(server.eval_request_timings)) == (4, 3)


async def test_timings_are_kept_up_to_the_rolling_length(connect, fake) -> None:
    server = connect(rolling_buffer_length=2)
    fake.fail_next.append(500)
    for _ in range(3):
        await server.chat_completion(messages=HELLO)
    assert list(server.attempts_list) == [1, 1]
    metrics = await server.wandb_metrics({"kept": 1}, "server_0")
    assert metrics["kept"] == 1 and metrics["server/server_0_average_num_attempts"] == 1
    assert metrics["server/server_0_request_time_99p"] == max(server.request_timings)
    assert not any("eval" in name for name in metrics)


def test_former_names_are_views_of_the_slots_and_timings_of_both_splits() -> None:
    server = ServerHarness(
        APIServerConfig(num_max_requests_at_once=3, num_requests_for_eval=2)
    )
    assert (server.sem.max_val, server.eval_sem.max_val) == (3, 2)
    server.train_stats.record(0.5, attempts=2)
    server.eval_stats.record(0.25, attempts=1)
    assert (list(server.request_timings), list(server.attempts_list)) == ([0.5], [2])
    assert list(server.eval_request_timings) == [0.25]
    assert list(server.eval_attempts_list) == [1]
