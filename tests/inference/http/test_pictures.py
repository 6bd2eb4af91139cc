"""Chats with pictures on the local server: exact tokens and logprobs, refusals, new weights."""

from __future__ import annotations

import asyncio

import pytest
import torch

from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.generation.sessions.managed import ManagedServer
from atroposlib.inference.engine.request import GenerationRequest, SamplingParams
from atroposlib.inference.engine.served_model import load_model
from atroposlib.inference.http.app import create_app
from atroposlib.testing.tiny_vision import FAMILIES
from atroposlib.wire.images import picture_bytes
from tests.inference.helpers import generate, ok
from tests.serving import served
from tests.vision import data_url, drawing, image_part, vision_dir

RED, BLUE = drawing("red"), drawing("blue", (64, 48))
EXACT = 1e-5


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory, family):
    return vision_dir(tmp_path_factory, family)


@pytest.fixture(scope="module")
def other_dir(tmp_path_factory, family):
    return vision_dir(tmp_path_factory, family, seed=1)


def user(*parts):
    return {
        "role": "user",
        "content": [
            {"type": "text", "text": part} if isinstance(part, str) else image_part(part)
            for part in parts
        ],
    }


def own_logprobs(model, ids, tokens, pictures, temperature=1.0):
    """Logprobs of ``tokens`` by a forward of the whole model, which counts positions itself."""
    sequence = torch.tensor([[*ids, *tokens]])
    inputs = model.reader.inputs(ids, pictures)
    extras = dict(inputs.tensors)
    if inputs.positions is not None:
        extras["mm_token_type_ids"] = torch.isin(
            sequence, torch.tensor(list(inputs.token_ids))
        ).int()
    with torch.inference_mode():
        logits = model.model(input_ids=sequence, **extras).logits[0] / temperature
    at = torch.arange(len(ids) - 1, sequence.shape[1] - 1)
    return logits.log_softmax(-1)[at, sequence[0, len(ids) :]]


def largest_gap(model, ids, tokens, logprobs, pictures, temperature=1.0):
    own = own_logprobs(model, ids, tokens, pictures, temperature)
    return float((own - torch.tensor(logprobs)).abs().max())


async def test_a_chat_returns_the_ids_with_placeholders_and_the_models_logprobs(
    http, model_dir
):
    model = load_model(str(model_dir))
    reply = await ok(
        http,
        "/v1/chat/completions",
        messages=[user("one ", RED, " two ", BLUE, " ?")],
        n=3,
        max_tokens=8,
        ignore_eos=True,
        logprobs=True,
        return_token_ids=True,
        temperature=0.7,
    )
    ids = reply["prompt_token_ids"]
    model.reader.inputs(ids, [RED, BLUE])  # as many placeholders as the processor makes
    for choice in reply["choices"]:
        logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        gap = largest_gap(model, ids, choice["token_ids"], logprobs, [RED, BLUE], 0.7)
        assert len(logprobs) == 8 and gap < EXACT
        assert not set(choice["token_ids"]) & model.reader.token_ids


async def test_rows_of_text_and_of_pictures_run_in_one_batch(http, model_dir):
    model = load_model(str(model_dir))
    options = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True, "logprobs": True}
    options["return_token_ids"] = True
    chats = [[user("a", RED)], [user("a", BLUE)], [{"role": "user", "content": "hello"}]]
    alone = [
        await ok(http, "/v1/chat/completions", messages=chat, **options) for chat in chats
    ]
    calls = [ok(http, "/v1/chat/completions", messages=chat, **options) for chat in chats]
    together = await asyncio.gather(*calls)
    for one, other, pictures in zip(alone, together, [[RED], [BLUE], []]):
        [choice], [same] = one["choices"], other["choices"]
        assert choice["token_ids"] == same["token_ids"]
        if pictures:
            logprobs = [entry["logprob"] for entry in same["logprobs"]["content"]]
            ids = other["prompt_token_ids"]
            assert largest_gap(model, ids, same["token_ids"], logprobs, pictures) < EXACT


def test_a_sequence_goes_on_with_new_weights_from_the_same_picture(
    make_engine, freeze_after, model_dir, other_dir
):
    engine = make_engine(model_dir)
    old, new = load_model(str(model_dir)), load_model(str(other_dir))
    text = old.reader.render(
        [{"role": "user", "content": [{"type": "image"}]}], add_generation_prompt=True
    )
    ids, pictures = old.reader.prompt(text, [RED])
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    request = GenerationRequest(prompt_ids=ids, pictures=pictures, n=2, params=params)
    words = GenerationRequest(prompt_ids=ids[:1], params=params)
    freeze_after(engine, request, words, tokens=5)
    engine.update_weights(str(other_dir), version=1)
    engine.resume()
    for output in request.future.result(600).outputs:
        (first, second) = output.versions
        tokens, logprobs = output.tokens, output.logprobs
        assert (first.version, second.version) == (0, 1) and 0 < first.end < 16
        before = own_logprobs(old, ids, tokens, [RED])[: first.end]
        after = own_logprobs(new, ids, tokens, [RED])[first.end :]
        own = torch.cat([before, after])
        assert float((own - torch.tensor(logprobs)).abs().max()) < EXACT


def test_equal_prompts_with_other_pictures_are_not_shared(make_engine, model_dir):
    engine = make_engine(model_dir)
    reader = engine.served.reader
    text = reader.render([{"role": "user", "content": [{"type": "image"}]}])
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    prompts = [reader.prompt(text, [drawing(colour)]) for colour in ("red", "blue", "red")]
    requests = [
        GenerationRequest(prompt_ids=ids, pictures=pictures, params=params)
        for ids, pictures in prompts
    ]
    assert requests[0].prompt_ids == requests[1].prompt_ids
    before = engine.counters.prefilled_tokens
    results = generate(engine, *requests)
    logprobs = [result.outputs[0].logprobs for result in results]
    assert logprobs[0] == logprobs[2] != logprobs[1]
    assert engine.counters.prefilled_tokens - before <= 3 * len(requests[0].prompt_ids)


async def test_a_session_extends_its_sequence_by_a_turn_with_another_picture(
    make_engine, model_dir
):
    model = load_model(str(model_dir))
    with served(create_app(make_engine(model_dir))) as url:
        config = APIServerConfig(
            base_url=f"{url}/v1",
            server_type="vllm",
            model_name="default",
            tokenizer_name=str(model_dir),
        )
        manager = ServerManager([config])
        session = ManagedServer(manager.servers[0])
        chat = [user("what? ", RED)]
        first = await session.chat_completion(messages=chat, max_tokens=6, seed=1)
        said = {"role": "assistant", "content": first.choices[0].message.content}
        chat += [said, user(BLUE, "and?")]
        last = await session.chat_completion(messages=chat, max_tokens=6)
        [node] = session.nodes_for(last)
        await manager.close()
    assert node.images == [data_url(RED), data_url(BLUE)]
    model.reader.inputs(node.tokens, [picture_bytes(url) for url in node.images])
    trained = [i for i, token in enumerate(node.masked_tokens) if token != -100]
    assert {node.versions[i] for i in trained} == {0}
    inputs = model.reader.inputs(node.tokens, [RED, BLUE])
    extras = dict(inputs.tensors)
    if inputs.positions is not None:
        extras["position_ids"] = inputs.positions[:, None]
    with torch.inference_mode():
        logits = model.model(input_ids=torch.tensor([node.tokens]), **extras).logits[0]
    for i in trained:  # both turns, in one forward of the whole row
        own = logits[i - 1].log_softmax(-1)[node.tokens[i]]
        assert abs(float(own) - node.logprobs[i]) < EXACT


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (
            {"type": "image_url", "image_url": {"url": "http://x.example/a.png"}},
            "never fetched",
        ),
        (image_part(b"no picture"), "not PNG, JPEG or WebP"),
        (image_part(RED[:50]), "cannot be decoded"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "a text or a picture"),
    ],
)
async def test_what_is_no_picture_is_refused(http, part, problem):
    chat = [{"role": "user", "content": [image_part(RED), part]}]
    reply = await http.post("/v1/chat/completions", json={"messages": chat})
    assert reply.status_code == 400 and problem in reply.json()["error"]["message"]


async def test_a_text_that_names_the_placeholder_is_refused_with_a_picture(http, model_dir):
    place = load_model(str(model_dir)).reader._processor.image_token
    reply = await http.post(
        "/v1/chat/completions", json={"messages": [user(f"look {place}", RED)]}
    )
    assert reply.status_code == 400 and "pictures" in reply.json()["error"]["message"]
