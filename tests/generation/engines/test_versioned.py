"""Clients of the versions that a server lists."""

from __future__ import annotations

import pytest

from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.versioned import listed_versions, version_client
from atroposlib.generation.routing.manager import backend_for
from atroposlib.testing.fake_inference import FakeInference


@pytest.fixture
def fake():
    return FakeInference(shapes=("generate", "completions", "sglang"))


def client_of(url, server_type):
    config = APIServerConfig(base_url=f"{url}/v1", server_type=server_type, model_name="fake")
    return backend_for(server_type)(config)


async def test_versions_are_the_listed_names_with_a_number(fake):
    fake.cards = [{"id": name} for name in ("fake", "fake@4", "fake@main", "fake@12")]
    with fake.running() as url:
        server = client_of(url, "vllm")
        assert await listed_versions(server) == {4: "fake@4", 12: "fake@12"}
        await server.close()


async def test_server_that_does_not_answer_lists_none():
    server = client_of("http://127.0.0.1:9", "vllm")
    assert await listed_versions(server) == {}
    await server.close()


@pytest.mark.parametrize("server_type", ["vllm", "sglang"])
async def test_request_names_the_version_and_its_tokens_carry_it(fake, server_type):
    if server_type == "sglang":
        fake.shapes = frozenset({"sglang"})
    fake.reports_spans = fake.reports_header = False
    fake.weight_version = None
    with fake.running() as url:
        server = client_of(url, server_type)
        client = version_client(server, "fake@12")
        (output,) = await client.generate([7, 8], max_tokens=4)
        assert set(output.versions) == {12}
        path, body = fake.requests[-1]
        if server_type == "vllm":
            assert (path, body["model"]) == ("/v1/completions", "fake@12")
        else:
            assert body["lora_path"] == "fake@12"
            assert "lora_path" not in body["sampling_params"]
        await client.close()
        await server.close()
