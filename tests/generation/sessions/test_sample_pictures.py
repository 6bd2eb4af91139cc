"""Token-exact chats with pictures: prompt ids of the server, images with the rows."""

from __future__ import annotations

import openai
import pytest

from atroposlib.errors import ConfigError, TokensMissing
from atroposlib.generation.proxy.in_process import serving_proxy
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.generation.sessions.managed import ManagedServer
from atroposlib.testing.fake_inference import PICTURE
from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer
from tests.generation.proxy.proxy_kit import openai_client

URLS = [f"data:image/png;base64,{name}" for name in ("AAAA", "BBBB")]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def part(url):
    return {"type": "image_url", "image_url": {"url": url}}


def user(*urls):
    return {"role": "user", "content": [*map(part, urls), {"type": "text", "text": "see"}]}


@pytest.fixture
def managed(connect, fake):
    fake.reply = lambda prompt, i: "ab"
    return ManagedServer(connect("vllm"), char_tokenizer(ASCII_ALPHABET))


async def ask(managed, *messages, **options):
    completion = await managed.chat_completion(messages=list(messages), **options)
    return completion.choices[0].message, managed.nodes_for(completion)[0]


async def test_rows_have_the_prompt_ids_and_logprobs_of_the_server(managed, fake):
    said, node = await ask(managed, user(URLS[0]), temperature=0.5, top_p=0.9)
    prompt = f"<|user|>{PICTURE}see<|end|><|assistant|>"
    assert managed.tokenizer.decode(node.tokens) == f"{prompt}ab<|end|>"
    assert said.content == "ab" and node.images == [URLS[0]]
    assert [label != -100 for label in node.masked_tokens[-4:]] == [False, True, True, True]
    assert all(logprob < 0 for logprob in node.logprobs[-3:])
    assert {"temperature": 0.5, "top_p": 0.9}.items() <= node.spans[0].items()
    ((path, body),) = fake.requests
    assert path == "/v1/chat/completions" and body["return_token_ids"] is True
    assert body["messages"] == [user(URLS[0])] and body["top_k"] == -1


async def test_a_second_turn_with_another_picture_extends_the_row(managed):
    said, _ = await ask(managed, user(URLS[0]))
    turns = [user(URLS[0]), said.model_dump(exclude_none=True), user(URLS[1])]
    _, node = await ask(managed, *turns)
    assert managed.get_state()["nodes"] == [node] and node.images == URLS
    assert len(node.spans) == 2


async def test_equal_placeholders_of_another_picture_do_not_extend_a_row(managed):
    said, _ = await ask(managed, user(URLS[0]))
    turns = [user(URLS[1]), said.model_dump(exclude_none=True), user()]
    _, node = await ask(managed, *turns)
    first, second = managed.get_state()["nodes"]
    assert (first.images, second.images) == ([URLS[0]], [URLS[1]])
    assert len(second.spans) == 1


async def test_the_announced_version_is_that_of_the_tokens(managed):
    managed.server.announced_version = 4
    _, node = await ask(managed, user(URLS[0]))
    assert node.versions[-1] == 4


async def test_tools_and_pictures_are_not_in_one_chat(managed, fake):
    with pytest.raises(ConfigError, match="tools or pictures, not both"):
        await ask(managed, user(URLS[0]), tools=[TOOL])
    assert not fake.requests


async def test_a_server_without_token_ids_is_refused_with_what_works(managed, fake):
    fake.on_request = lambda path, body: body.pop("return_token_ids", None)
    with pytest.raises(TokensMissing, match="vLLM returns them; with server_type openai"):
        await ask(managed, user(URLS[0]))


async def test_agents_of_every_api_send_pictures_through_the_proxy(connect, fake):
    fake.reply = lambda prompt, i: "ab"
    manager = ServerManager([connect("vllm").config])
    async with serving_proxy(manager, char_tokenizer(ASCII_ALPHABET), "fake") as proxy:
        async with await proxy.open_session() as session, openai_client(session) as client:
            await client.chat.completions.create(model="m", messages=[user(URLS[0])])
            image = {"type": "input_image", "image_url": URLS[0], "detail": "auto"}
            asked = [{"role": "user", "content": [image]}]
            await client.responses.create(model="m", input=asked)
            source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
            block = {"type": "image", "source": source}
            body = {"max_tokens": 9, "messages": [{"role": "user", "content": [block]}]}
            await client.post("/messages", body=body, cast_to=object)
            rows = session.rows()
            with pytest.raises(openai.BadRequestError, match="tokens are not known here"):
                await client.post("/messages/count_tokens", body=body, cast_to=object)
    await manager.close()
    assert [row.images for row in rows] == [[URLS[0]]] * 3
    sent = [body["messages"][0]["content"][0] for _, body in fake.requests]
    assert sent == [part(URLS[0])] * 3
