"""Addresses and answers of the HTTP client; which model a server serves."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from atroposlib.errors import ConfigError, InferenceRefused, InferenceUnavailable
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.http import POOL_CONNECTIONS, HttpClient, _Pool, server_root
from atroposlib.generation.engines.openai import OpenAIServer
from atroposlib.generation.engines.sglang import SGLangServer
from atroposlib.generation.engines.vllm import VLLMServer
from atroposlib.testing.fake_inference import FakeInference
from tests.serving import served

BASE = {"id": "small", "owned_by": "vllm", "root": "org/small", "parent": None}
ADAPTER = {"id": "tuned", "owned_by": "vllm", "root": "adapters/1", "parent": "small"}
HELLO = [{"role": "user", "content": "hello"}]


def test_only_a_trailing_v1_is_removed_from_the_server_root() -> None:
    assert server_root("http://v1.example/v1/models/v1/") == "http://v1.example/v1/models"
    assert server_root("http://host:9001") == "http://host:9001"


async def test_an_address_that_is_not_a_url_is_a_config_error() -> None:
    server = OpenAIServer(APIServerConfig(base_url="localhost:9001/v1"))
    with pytest.raises(ConfigError, match="base_url"):
        await server.chat_completion(messages=HELLO)
    await server.close()


def hanging() -> tuple[HttpClient, asyncio.Event]:
    """A client whose connection is never open, and the event of its first request."""
    begun = asyncio.Event()

    async def hang(request: httpx.Request) -> httpx.Response:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    transport = httpx.MockTransport(hang)
    client = HttpClient(600, None, [_Pool(httpx.AsyncClient(transport=transport))])
    return client, begun


async def test_a_request_whose_connection_is_being_opened_ends_with_its_client() -> None:
    client, begun = hanging()
    request = asyncio.ensure_future(client.send("GET", "http://host:1/"))
    await begun.wait()
    await client.aclose()
    with pytest.raises(InferenceUnavailable, match="the connection was closed"):
        await asyncio.wait_for(request, 600)


async def test_a_cancelled_request_stays_cancelled() -> None:
    client, begun = hanging()
    request = asyncio.ensure_future(client.send("GET", "http://host:1/"))
    await begun.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await client.aclose()


async def test_requests_beyond_a_pool_open_connections_that_later_requests_use_again() -> None:
    count = 2 * POOL_CONNECTIONS + 1
    ports: list[int] = []

    async def hold(request: Request) -> PlainTextResponse:
        ports.append(request.client.port)
        if len(ports) % count == 0:
            all_here.set()
        await all_here.wait()  # no response before the last request
        return PlainTextResponse("ok")

    with served(Starlette(routes=[Route("/", hold)])) as url:
        client = HttpClient(60, None)
        for _ in range(2):
            all_here = asyncio.Event()
            sent = [client.send("GET", url) for _ in range(count)]
            assert {r.status_code for r in await asyncio.gather(*sent)} == {200}
        assert len(client._pools) == 3
        await client.aclose()
    assert len(ports) == 2 * count
    assert len(set(ports)) == count


async def test_a_server_without_names_takes_model_and_tokenizer_of_vllm(connect, fake) -> None:
    fake.cards = [BASE, ADAPTER]
    server = connect("vllm")
    await server.chat_completion(messages=HELLO)
    assert fake.requests[-1][1]["model"] == "small"
    assert (server.config.tokenizer_name, server.directory) == ("org/small", "org/small")


@pytest.mark.parametrize("name", ["small", "tuned"])
async def test_a_listed_name_is_kept(connect, fake, name) -> None:
    fake.cards = [BASE, ADAPTER]
    server = connect("vllm", model_name=name)
    await server.identify()
    assert server.config.model_name == name


@pytest.mark.parametrize("adapters_may_come", [False, True])
async def test_a_name_that_is_not_served_is_refused_with_the_served_ones(
    adapters_may_come,
) -> None:
    app = FastAPI()
    app.get("/v1/models")(lambda: {"data": [BASE, ADAPTER]})
    if adapters_may_come:
        app.post("/v1/load_lora_adapter")(lambda: None)
    with served(app) as url:
        server = VLLMServer(APIServerConfig(base_url=f"{url}/v1", model_name="other"))
        if adapters_may_come:
            await server.identify()
        else:
            with pytest.raises(ConfigError, match="'other' is not served .* small or tuned"):
                await server.chat_completion(messages=HELLO)
        await server.close()


async def test_unknown_kinds_of_servers_may_serve_names_that_they_do_not_list(connect) -> None:
    server = connect("vllm", model_name="other")
    await server.identify()
    assert server.config.model_name == "other"


async def test_the_directory_of_the_local_server_is_its_name(connect, fake, tmp_path) -> None:
    fake.cards = [{"id": "m", "owned_by": "atropos-local", "root": str(tmp_path)}]
    server = connect("vllm", model_name=f"{tmp_path}/../{tmp_path.name}")
    await server.identify()
    assert server.config.model_name == "m"


async def test_sglang_names_its_tokenizer_and_serves_base_and_adapter() -> None:
    app = FastAPI()
    cards = [{"id": "small", "owned_by": "sglang", "root": "small"}]
    app.get("/v1/models")(lambda: {"data": cards})
    app.get("/get_model_info")(lambda: {"model_path": "/m", "tokenizer_path": "/m/tokens"})
    with served(app) as url:
        for name, known in (("default", "small"), ("small:tuned", "small:tuned")):
            config = APIServerConfig(base_url=f"{url}/v1", model_name=name)
            server = SGLangServer(config)
            await server.identify()
            assert (server.config.model_name, server.directory) == (known, "/m/tokens")
            await server.close()


async def test_something_else_at_the_address_is_named() -> None:
    with served(FastAPI()) as url:
        server = VLLMServer(APIServerConfig(base_url=f"{url}/v1"))
        with pytest.raises(ConfigError, match=f"{url} answers, but is no inference server"):
            await server.chat_completion(messages=HELLO)
        await server.close()


async def test_a_server_that_lists_no_models_is_used(no_backoff) -> None:
    fake = FakeInference(shapes={"trl"})
    fake.cards = []
    with fake.running() as url:
        server = VLLMServer(APIServerConfig(base_url=f"{url}/v1", model_name="any"))
        await server.identify()
        assert server.identified and server.directory is None
        await server.close()


@pytest.mark.parametrize(
    ("status", "detail", "says"),
    [
        (
            404,
            "Not Found",
            "model 'other' is not served at http.* to small or tuned, or leave",
        ),
        (400, "unknown model other", "model 'other' is not served"),
        (
            400,
            "token ids lie in 0 .. 49",
            "tokenizer mine has more tokens than the model other",
        ),
        (400, "too long", r"refused \(400\): POST"),
    ],
)
async def test_a_refused_request_names_both_sides(status, detail, says) -> None:
    app = FastAPI()
    app.get("/health")(lambda: None)
    app.get("/v1/models")(lambda: {"data": [{**BASE, "owned_by": "else"}, ADAPTER]})
    app.post("/v1/chat/completions")(lambda: JSONResponse({"detail": detail}, status))
    names = {"model_name": "other", "tokenizer_name": "mine"}
    with served(app) as url:
        server = VLLMServer(APIServerConfig(base_url=f"{url}/v1", **names))
        with pytest.raises(InferenceRefused, match=says) as refused:
            await server.chat_completion(messages=HELLO)
        await server.close()
    assert refused.value.status_code == status


async def test_the_tokenizer_of_an_absent_server_is_compared_when_it_answers(fake) -> None:
    class Longer:
        def encode(self, text):
            return [1, 2, 3]

    app = FastAPI()
    app.post("/tokenize")(lambda: {"tokens": [1]})
    app.mount("/", fake.app)
    with served(app) as url:
        server = VLLMServer(APIServerConfig(base_url=f"{url}/v1"))
        await server.require_tokenizer(Longer(), "mine")
        for _ in range(2):
            with pytest.raises(ConfigError, match="tokenizer mine is not that of model"):
                await server.chat_completion(messages=HELLO)
        await server.close()
