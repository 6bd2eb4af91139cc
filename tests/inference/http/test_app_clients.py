"""The clients of environments against the real local server: exact tokens, also when the
weights change in the middle of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.openai import OpenAIServer
from atroposlib.generation.engines.vllm import CompletionsRoute, DemoRoute
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.inference.engine.engine import Engine, PauseMode
from atroposlib.inference.engine.served_model import ServedModel, load_model
from atroposlib.inference.http.app import create_app
from atroposlib.testing.tiny import write_tiny_model
from tests.inference.helpers import fresh_logprobs
from tests.serving import served

EXACT = 1e-4
PROMPT = [5, 6, 7, 8]
GREEDY: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0, "ignore_eos": True}


class Running:
    """Local servers behind one manager, as an environment has them."""

    def __init__(self, manager: ServerManager, engines: list[Engine], urls: list[str]) -> None:
        self.manager = manager
        self.engines = engines
        self.urls = urls

    async def post(self, path: str, **body: Any) -> None:
        async with httpx.AsyncClient(timeout=600) as http:
            (await http.post(f"{self.urls[0]}{path}", json=body)).raise_for_status()


def write_varied_model(directory: Path, seed: int) -> Path:
    """The tiny model with an untied output layer; with a tied one it repeats itself."""
    write_tiny_model(directory)
    config = LlamaConfig.from_pretrained(directory, tie_word_embeddings=False)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(directory)
    return directory


# The names of conftest's, so that ``make_engine`` serves these weights here.
@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_varied_model(tmp_path_factory.mktemp("varied") / "old", seed=0)


@pytest.fixture(scope="module")
def other_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_varied_model(tmp_path_factory.mktemp("varied") / "new", seed=1)


@pytest.fixture(scope="module")
def old_weights(model_dir: Path) -> ServedModel:
    return load_model(str(model_dir))


@pytest.fixture(scope="module")
def new_weights(other_dir: Path) -> ServedModel:
    return load_model(str(other_dir))


@pytest.fixture
async def running(make_engine, model_dir) -> AsyncIterator[Callable[[int], Running]]:
    with ExitStack() as stack:
        made: list[ServerManager] = []

        def run(count: int = 1) -> Running:
            engines = [make_engine() for _ in range(count)]
            urls = [stack.enter_context(served(create_app(engine))) for engine in engines]
            configs = [
                APIServerConfig(
                    base_url=f"{url}/v1",
                    server_type="vllm",
                    model_name="tiny",
                    tokenizer_name=str(model_dir),
                    timeout=600,
                )
                for url in urls
            ]
            made.append(ServerManager(configs))
            return Running(made[-1], engines, urls)

        yield run
        for manager in made:
            await manager.close()


def abort_at(engine: Engine, *steps: int) -> None:
    """Pause in mode abort after these steps of the engine, counted from now.

    Done by the engine thread itself, so that it happens exactly there.
    """
    core, waiting = engine._core, set(steps)
    original, taken = core.step, 0

    def step(admit: bool) -> None:
        nonlocal taken
        original(admit)
        taken += 1
        if taken in waiting:
            waiting.discard(taken)
            engine._pause(PauseMode.ABORT, Future())

    core.step = step  # type: ignore[method-assign]


async def resumed_whenever_paused(
    call: asyncio.Future[Any], engine: Engine, before: Callable[[int], Any]
) -> Any:
    """Play the trainer until the call is over: ``before`` the k-th resume, then resume."""
    pauses = 0
    while not call.done():
        if engine.is_paused:
            pauses += 1
            await before(pauses)
            engine.resume()
        await asyncio.sleep(0.001)
    return call.result()


async def nothing(pauses: int) -> None:
    """The weights stay."""


async def test_sampled_tokens_have_the_logprobs_of_the_model(running, old_weights) -> None:
    manager = running().manager
    for route in (DemoRoute(), CompletionsRoute()):
        manager.servers[0]._route = route
        outputs = await manager.generate(PROMPT, n=11, max_tokens=12, temperature=0.7)
        assert len(outputs) == 11
        for output in outputs:
            fresh = fresh_logprobs(old_weights, PROMPT, output.tokens, 0.7).tolist()
            assert output.logprobs == pytest.approx(fresh, abs=EXACT)
            assert output.versions == [0] * len(output.tokens)
            assert output.finish_reason in ("stop", "length")


async def test_every_name_of_the_limit_and_both_kinds_of_stop_work(running) -> None:
    manager = running().manager
    (whole,) = await manager.generate(PROMPT, **GREEDY)
    tokenizer = manager.servers[0].tokenizer
    text = tokenizer.decode(whole.tokens, skip_special_tokens=True)
    word = text[10:12]
    for stop in (word, ["never said", word]):
        (cut,) = await manager.generate(PROMPT, **GREEDY, stop=stop)
        found = tokenizer.decode(cut.tokens, skip_special_tokens=True)
        assert cut.finish_reason == "stop" and found == text[: text.index(word) + 2]
    for name in ("max_tokens", "max_new_tokens", "max_completion_tokens"):
        ids, tokens, logprobs, reasons = await manager.tokens_and_logprobs_completion(
            input_ids=PROMPT, temperature=0.0, ignore_eos=True, **{name: 7}
        )
        assert (ids, tokens, reasons) == (PROMPT, [whole.tokens[:7]], ["length"])
        assert logprobs[0] == pytest.approx(whole.logprobs[:7], abs=EXACT)


async def test_a_given_sequence_is_scored(running, old_weights) -> None:
    manager = running().manager
    ids = PROMPT + [9, 10, 11]
    expected = fresh_logprobs(old_weights, ids[:1], ids[1:]).tolist()
    scored = await manager.get_logprobs(input_ids=ids, top_k=2)
    own = [
        dict(zip(names, values))[token]
        for token, names, values in zip(
            ids[1:],
            scored["prompt_topk_token_ids"][1:],
            scored["prompt_topk_logprobs"][1:],
        )
    ]
    assert own == pytest.approx(expected, abs=EXACT)
    assert scored["prompt_topk_token_ids"][0] == []


async def test_text_completions_work_through_the_openai_client(running) -> None:
    alone = running()
    config = APIServerConfig(base_url=f"{alone.urls[0]}/v1", model_name="tiny")
    server = OpenAIServer(config)
    chat = await server.chat_completion(
        messages=[{"role": "user", "content": "hi"}], n=2, max_tokens=4
    )
    assert len(chat.choices) == 2 and chat.usage.completion_tokens <= 8
    assert (await server.completion(prompt="abc", max_tokens=3)).choices[0].text is not None
    await server.close()


@pytest.mark.parametrize("steps", [(1,), (7,), (3, 4, 5, 20)], ids=str)
async def test_aborts_under_the_same_weights_change_nothing(
    running, steps: tuple[int, ...]
) -> None:
    alone = running()
    (engine,) = alone.engines
    (whole,) = await alone.manager.generate(PROMPT, **GREEDY)
    assert len(set(whole.tokens)) > 5
    abort_at(engine, *steps)
    call = asyncio.ensure_future(alone.manager.generate(PROMPT, n=3, **GREEDY))
    outputs = await resumed_whenever_paused(call, engine, nothing)
    for output in outputs:
        assert output.tokens == whole.tokens
        assert output.logprobs == pytest.approx(whole.logprobs, abs=EXACT)
        assert (output.prompt_ids, output.finish_reason) == (PROMPT, "length")


async def test_a_stop_string_across_an_abort_ends_the_sample_at_the_same_token(
    running,
) -> None:
    alone = running()
    (engine,) = alone.engines
    (whole,) = await alone.manager.generate(PROMPT, **GREEDY)
    tokenizer = alone.manager.servers[0].tokenizer
    text = tokenizer.decode(whole.tokens, skip_special_tokens=True)
    stop = text[:8]
    (expected,) = await alone.manager.generate(PROMPT, **GREEDY, stop=stop)
    assert expected.finish_reason == "stop"
    abort_at(engine, len(expected.tokens) - 3)  # in the middle of it
    call = asyncio.ensure_future(alone.manager.generate(PROMPT, **GREEDY, stop=[stop]))
    (output,) = await resumed_whenever_paused(call, engine, nothing)
    assert (output.tokens, output.finish_reason) == (expected.tokens, "stop")


async def test_every_token_carries_the_version_and_the_logprob_of_its_weights(
    running, model_dir, other_dir, old_weights, new_weights
) -> None:
    alone = running()
    (engine,) = alone.engines
    abort_at(engine, 5, 12, 21)

    async def publish(pauses: int) -> None:
        directory = other_dir if pauses % 2 else model_dir
        await alone.post(
            "/update_weights_from_disk", model_path=str(directory), weight_version=pauses
        )

    call = asyncio.ensure_future(
        alone.manager.generate(PROMPT, n=3, max_tokens=40, ignore_eos=True)
    )
    outputs = await resumed_whenever_paused(call, engine, publish)
    for output in outputs:
        assert output.versions == sorted(output.versions) and len(output.tokens) == 40
        assert set(output.versions) == {0, 1, 2, 3}
        by_weights = [
            fresh_logprobs(weights, PROMPT, output.tokens).tolist()
            for weights in (old_weights, new_weights)
        ]
        expected = [by_weights[v % 2][t] for t, v in enumerate(output.versions)]
        assert output.logprobs == pytest.approx(expected, abs=EXACT)
        wrong = [by_weights[1 - v % 2][t] for t, v in enumerate(output.versions)]
        assert output.logprobs != pytest.approx(wrong, abs=EXACT)


@pytest.mark.slow
async def test_another_server_continues_after_the_tokens_of_a_failed_server(
    make_engine,
) -> None:
    first, second = make_engine(), make_engine()
    with ExitStack() as dies, served(create_app(second)) as second_url:
        first_url = dies.enter_context(served(create_app(first)))
        manager = ServerManager(
            [
                APIServerConfig(
                    base_url=f"{url}/v1", server_type="vllm", model_name="tiny", timeout=600
                )
                for url in (first_url, second_url)
            ]
        )
        (whole,) = await manager.servers[1].generate(PROMPT, **GREEDY)
        abort_at(first, 9)
        call = asyncio.ensure_future(manager.generate(PROMPT, **GREEDY))
        while not first.is_paused:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(dies.close)
        (output,) = await call
        assert output.tokens == whole.tokens
        assert output.logprobs == pytest.approx(whole.logprobs, abs=EXACT)
        assert second.counters.finished_sequences == 2
        await manager.close()
