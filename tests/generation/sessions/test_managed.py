from __future__ import annotations

import asyncio
from typing import Any

import pytest

from atroposlib.errors import ConfigError, TokensMissing
from atroposlib.generation.chat.template import render
from atroposlib.generation.engines.harness import ServerHarness
from atroposlib.generation.sessions.managed import (
    ManagedServer,
    ManagedServerAdapter,
    SequenceNode,
)
from atroposlib.testing.fake_shapes import END, decode, encode, fake_logprob
from atroposlib.testing.tiny import char_tokenizer

Messages = list[dict[str, str]]

THINKING_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m['role'] == 'assistant' and '</think>' in m['content'] %}"
    "{{ m['content'].split('</think>')[-1] }}{% else %}{{ m['content'] }}{% endif %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def managed(connect, tokenizer) -> ManagedServer:
    return ManagedServer(connect("vllm"), tokenizer)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def answered(messages: Messages, completion: Any, choice: int = 0) -> Messages:
    content = completion.choices[choice].message.content
    return [*messages, {"role": "assistant", "content": content}]


def trained_text(node: SequenceNode) -> str:
    return decode(token for token in node.masked_tokens if token != -100)


def test_the_fake_and_the_tiny_tokenizer_agree(tokenizer) -> None:
    text = "<|user|>2 + 2 = ?\n<|end|><|assistant|>"
    assert tokenizer.encode(text, add_special_tokens=False) == encode(text)


async def test_a_first_turn_is_a_row_of_the_rendered_prompt_and_the_sample(
    managed, fake
) -> None:
    fake.reply = lambda prompt, i: "4"
    fake.weight_version = 3
    completion = await managed.chat_completion(messages=[user("2+2=")], max_tokens=5)
    (node,) = managed.nodes_for(completion)
    prompt = encode("<|user|>2+2=<|end|><|assistant|>")
    sample = [*encode("4"), END]
    assert node.tokens == prompt + sample
    assert node.masked_tokens == [-100] * len(prompt) + sample
    assert node.logprobs == [1.0] * len(prompt) + [fake_logprob(token) for token in sample]
    assert node.versions == [-1] * len(prompt) + [3, 3]
    assert node.full_text == "<|user|>2+2=<|end|><|assistant|>4<|end|>"
    assert node.metadata == {"finish_reason": "stop"}
    assert completion.choices[0].message.content == "4"


async def test_many_turns_equal_the_template_rendered_once(managed, fake, tokenizer) -> None:
    fake.reply = lambda prompt, i: f"turn {prompt.count('assistant')}"
    messages: Messages = []
    for turn in range(3):
        fake.weight_version = turn
        messages.append(user(f"go {turn}"))
        completion = await managed.chat_completion(messages=messages)
        messages = answered(messages, completion)
    (node,) = managed.nodes_for(completion)
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert node.full_text == rendered and node.tokens == encode(rendered)
    assert trained_text(node) == "turn 1<|end|>turn 2<|end|>turn 3<|end|>"
    assert [v for v, m in zip(node.versions, node.masked_tokens) if m == END] == [0, 1, 2]
    assert managed.get_state()["nodes"] == [node]
    sent = [body["prompt"]["prompt_token_ids"] for _, body in fake.requests]
    assert [ids.count(END) for ids in sent] == [1, 3, 5]  # no end token is doubled


async def test_the_end_token_added_to_a_truncated_turn_is_not_trained(managed, fake) -> None:
    fake.reply = lambda prompt, i: "long answer"
    first = await managed.chat_completion(messages=[user("a")], max_tokens=4)
    messages = [*answered([user("a")], first), user("b")]
    second = await managed.chat_completion(messages=messages, max_tokens=2)
    (node,) = managed.nodes_for(second)
    assert (
        node.full_text
        == "<|user|>a<|end|><|assistant|>long<|end|><|user|>b<|end|><|assistant|>lo"
    )
    assert trained_text(node) == "longlo"


async def test_text_completions_also_extend_earlier_rows(managed, fake) -> None:
    fake.reply = lambda prompt, i: "x"
    first = await managed.completion(prompt="abc")
    second = await managed.completion(prompt="abcx<|end|> and", split="eval")
    (node,) = managed.nodes_for(second)
    assert node.full_text == "abcx<|end|> andx<|end|>"
    assert trained_text(node) == "x<|end|>x<|end|>"
    assert first.choices[0].text == "x"
    assert len(managed.server.eval_request_timings) == 1


async def test_every_choice_has_a_node(managed, fake) -> None:
    fake.reply = lambda prompt, i: f"choice {i}"
    completion = await managed.chat_completion(messages=[user("a")], n=3)
    nodes = managed.nodes_for(completion)
    for choice, node in zip(completion.choices, nodes):
        assert trained_text(node) == f"{choice.message.content}<|end|>"
    branch = [*answered([user("a")], completion, choice=1), user("b")]
    second = await managed.chat_completion(messages=branch, n=2)
    for node in managed.nodes_for(second):
        assert trained_text(node).startswith("choice 1<|end|>choice ")
    assert len(managed.get_state()["nodes"]) == 4


async def test_concurrent_calls_keep_separate_rows(managed, fake) -> None:
    fake.reply = lambda prompt, i: prompt.split("<|user|>")[-1].split("<|end|>")[0][::-1]

    async def two_turns(name: str) -> None:
        messages = [user(f"{name} 1")]
        first = await managed.chat_completion(messages=messages)
        messages = [*answered(messages, first), user(f"{name} 2")]
        second = await managed.chat_completion(messages=messages)
        (node,) = managed.nodes_for(second)
        assert trained_text(node) == f"1 {name[::-1]}<|end|>2 {name[::-1]}<|end|>"

    await asyncio.gather(*(two_turns(f"call {chr(97 + i)}") for i in range(12)))
    assert len(managed.get_state()["nodes"]) == 12


async def test_a_call_that_ends_after_a_reset_adds_no_rows(managed, fake) -> None:
    import threading

    fake.hold = threading.Event()
    call = asyncio.ensure_future(managed.chat_completion(messages=[user("a")]))
    while not fake.running_now:
        await asyncio.sleep(0.001)
    managed.reset()
    fake.hold.set()
    await call
    assert managed.get_state() == {"nodes": []}


@pytest.mark.parametrize(("preserve", "rows"), [(False, 2), (True, 1)])
async def test_a_template_that_drops_thinking_splits_rows_unless_it_is_preserved(
    preserve: bool, rows: int
) -> None:
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789 .,:?+-=\n"
    thinker = char_tokenizer(alphabet + "<>/\u2060[]")
    thinker.chat_template = THINKING_TEMPLATE
    harness = ServerHarness()
    managed = ManagedServer(harness, thinker, preserve_think_blocks=preserve)
    sample = thinker.encode("<think>hm</think>4<|end|>", add_special_tokens=False)
    messages = [user("a")]
    for _ in range(2):
        text = render(thinker, messages, preserve_think_blocks=preserve)
        harness.set_tokens_and_logprobs_response(
            text,
            thinker.encode(text, add_special_tokens=False),
            [sample],
            [[-0.5] * len(sample)],
            [{"type": "stop"}],
        )
        completion = await managed.chat_completion(messages=messages)
        assert completion.choices[0].finish_reason == "stop"
        messages = [*answered(messages, completion), user("b")]
    nodes = managed.get_state()["nodes"]
    assert len(nodes) == rows
    for node in nodes:
        assert len(node.tokens) == len(node.masked_tokens) == len(node.logprobs)
    trained = sum(m != -100 for node in nodes for m in node.masked_tokens)
    assert trained == 2 * len(sample)


async def test_a_tree_session_links_its_turns(connect, fake, tokenizer) -> None:
    managed = ManagedServer(connect("vllm"), tokenizer, track_tree=True)
    first = await managed.chat_completion(messages=[user("a")])
    await managed.chat_completion(messages=[*answered([user("a")], first), user("b")])
    state = managed.get_state()
    parent, child = state["sequences"]
    assert state["tree"] == {parent: [child], child: []}


async def test_logprobs_of_messages_are_those_of_their_rendering(managed) -> None:
    answer = await managed.get_logprobs(messages=[user("a")], top_k=1)
    assert answer["prompt_tokens"] == encode("<|user|>a<|end|><|assistant|>")
    with pytest.raises(ConfigError, match="needs prompt, messages or input_ids"):
        await managed.get_logprobs()


async def test_an_openai_style_client_samples_through_the_session(managed, fake) -> None:
    client = ManagedServerAdapter(managed, "http://session/v1")
    completion = await client.chat.completions.create(model="any", messages=[user("a")])
    assert len(managed.nodes_for(completion)) == 1
    assert (await client.completions.create(prompt="b")).choices[0].text
    with pytest.raises(NotImplementedError):
        client.post("/anything")


async def test_identical_siblings_extended_concurrently_are_each_extended_once(
    connect, fake, tokenizer
) -> None:
    managed = ManagedServer(connect("vllm"), tokenizer)
    fake.reply = lambda prompt, i: "same"
    first = await managed.chat_completion(messages=[user("a")], n=3)
    messages = [*answered([user("a")], first), user("b")]
    calls = await asyncio.gather(
        *(managed.chat_completion(messages=messages) for _ in range(3))
    )
    rows = managed.get_state()["nodes"]
    assert len(rows) == 3
    assert [trained_text(row) for row in rows] == ["same<|end|>same<|end|>"] * 3
    assert all(managed.nodes_for(call)[0] in rows for call in calls)


async def test_chat_template_options_are_passed_to_the_template_and_not_to_the_server(
    connect, fake
) -> None:
    tokenizer = char_tokenizer()
    tokenizer.chat_template += "{% if mood %}{{ mood }}{% endif %}"
    managed = ManagedServer(connect("vllm"), tokenizer)
    await managed.chat_completion(
        messages=[user("a")],
        chat_template_kwargs={"mood": "happy"},
        extra_body={"chat_template_kwargs": {"mood": "sad"}, "min_p": 0.25},
    )
    _, body = fake.requests[-1]
    assert decode(body["prompt"]["prompt_token_ids"]).endswith("<|assistant|>happy")
    assert body["min_p"] == 0.25 and "chat_template_kwargs" not in body
    with pytest.raises(ConfigError, match="stream"):
        await managed.chat_completion(messages=[user("a")], stream=True)


async def test_a_token_beyond_the_vocabulary_of_the_tokenizer_is_a_typed_error(
    connect, fake
) -> None:
    fake.reply = lambda prompt, i: "{"  # of ASCII_ALPHABET only
    tokenizer = char_tokenizer()
    managed = ManagedServer(connect("vllm"), tokenizer)
    (sampled,) = encode("{")
    sizes = f"at least {sampled + 1} tokens, and the tokenizer .* has {len(tokenizer)}:"
    with pytest.raises(TokensMissing, match=f"{sizes} set tokenizer_name"):
        await managed.chat_completion(messages=[user("a")])
    assert managed.get_state()["nodes"] == []
