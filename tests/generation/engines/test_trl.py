"""Request fields and limits specific to TRL servers."""

from __future__ import annotations

import pytest

from atroposlib.errors import TokensMissing
from atroposlib.testing.fake_shapes import encode

PROMPT = encode("<|user|>2+2=<|end|><|assistant|>")
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def trl(connect, fake, tokenizer):
    fake.shapes = frozenset({"trl"})
    server = connect("trl")
    server.tokenizer = tokenizer
    return server


async def test_a_trl_request_has_every_field_and_the_rest_as_generation_kwargs(
    trl, fake
) -> None:
    await trl.completion(prompt="abc", temperature=0.5, stop=["x"], max_new_tokens=4)
    _, body = fake.requests[0]
    assert body == {
        "prompts": ["abc"],
        "n": 1,
        "repetition_penalty": 1.0,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "max_tokens": 4,
        "generation_kwargs": {"stop": ["x"]},
    }


async def test_a_trl_server_without_logprobs_raises(trl, fake) -> None:
    fake.shapes = frozenset({"trl_text"})
    assert (await trl.chat_completion(messages=HELLO)).choices[0].message.content
    with pytest.raises(TokensMissing, match="no prompt_ids"):
        await trl.generate(PROMPT)
    fake.fail_next.append(422)
    with pytest.raises(TokensMissing, match="takes text only.*server_type vllm"):
        await trl.generate(PROMPT)


async def test_trl_chats_are_rendered_with_the_named_tokenizer(
    connect, fake, tokenizer, tmp_path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    fake.shapes = frozenset({"trl"})
    server = connect("trl", model_name="unknown", tokenizer_name=str(tmp_path))
    await server.chat_completion(messages=HELLO)
    assert fake.requests[0][1]["prompts"] == ["<|user|>hello<|end|><|assistant|>"]
