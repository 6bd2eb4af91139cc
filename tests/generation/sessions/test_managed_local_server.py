"""A managed session over the real local inference server and a tiny real model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.vllm import VLLMServer
from atroposlib.generation.sessions.managed import ManagedServer
from atroposlib.testing import serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """(base URL, the model that is served)."""
    from atroposlib.inference.engine.core import EngineLimits
    from atroposlib.inference.engine.engine import Engine
    from atroposlib.inference.engine.served_model import load_model
    from atroposlib.inference.http.app import create_app
    from atroposlib.testing.tiny import write_tiny_model

    directory: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    model = load_model(str(directory), name="tiny")
    engine = Engine(model, EngineLimits(), seed=0, num_threads=1)
    engine.start()
    with serving.serve_in_thread(create_app(engine)) as url:
        yield f"{url}/v1", model
    engine.close()


@pytest.fixture
async def server(served: tuple[str, Any]) -> AsyncIterator[VLLMServer]:
    config = APIServerConfig(base_url=served[0], server_type="vllm", model_name="tiny")
    client = VLLMServer(config)
    yield client
    await client.close()


@pytest.mark.parametrize("stop", [None, ["e", "a"]])
async def test_every_row_of_a_real_session_has_the_logprobs_of_one_forward_pass(
    server, served, tokenizer, stop
) -> None:
    import torch

    managed = ManagedServer(server, tokenizer)
    messages: list[Any] = []
    for turn in range(4):
        messages.append({"role": "user", "content": f"turn {turn}"})
        completion = await managed.chat_completion(
            messages=messages, n=2, max_tokens=8, stop=stop
        )
        said = completion.choices[turn % 2].message.content
        assert not any(word in said for word in stop or ())
        messages.append({"role": "assistant", "content": said})
    rows = managed.get_state()["nodes"]
    sampled = 0
    for row in rows:
        logits = served[1].model(input_ids=torch.tensor([row.tokens])).logits[0]
        logprobs = logits.log_softmax(-1)
        for at, (token, logprob) in enumerate(zip(row.masked_tokens, row.logprobs)):
            if token == -100:
                assert (logprob, row.versions[at]) == (1.0, -1)
                continue
            sampled += 1
            assert row.versions[at] == 0 and row.tokens[at] == token
            assert float(logprobs[at - 1, token]) == pytest.approx(logprob, abs=1e-4)
    assert sampled >= 8
    last = managed.nodes_for(completion)[0]
    prompt = tokenizer.apply_chat_template(
        messages[:-1], tokenize=False, add_generation_prompt=True
    )
    if stop is None:  # else the row has the stop strings, which the messages do not have
        assert last.full_text.startswith(prompt)
