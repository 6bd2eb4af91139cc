"""Replies of any other form: used rightly, or a typed error with address, route and field."""

from __future__ import annotations

import asyncio
import copy
import json
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from starlette.responses import Response

from atroposlib.errors import AtroposError, ForeignReply, InferenceUnavailable, TokensMissing
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.routing.manager import backend_for
from atroposlib.generation.sampling.reply_form import ReplyPart, checked_choices, expected_form
from atroposlib.generation.sessions.managed import ManagedServer
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import char_tokenizer

ASKED = [{"role": "user", "content": "hello"}]
URL = "http://a:1/v1/chat/completions"


class ForeignInference(FakeInference):
    """A server whose replies a test changes before they are sent, also to NaN."""

    def __init__(self, shapes: tuple[str, ...]) -> None:
        super().__init__(shapes=shapes)
        self.changed: Callable[[Any], Any] = lambda reply: reply

    def _answers(self) -> Mapping[str, Callable[[Any], Any]]:
        def of(answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
            return lambda body: self.changed(json.loads(json.dumps(answer(body))))

        return {path: of(answer) for path, answer in super()._answers().items()}

    def _json(self, payload: Any, status: int = 200) -> Response:
        return Response(json.dumps(payload), status, media_type="application/json")


SMALL = st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=2)
VALUES = st.recursive(
    SMALL | st.sampled_from([10**30, "-0.5", 1e308]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab_7", max_size=2), inner)
    ),
    max_leaves=4,
)
ABSENT = object()
CHANGES = st.lists(
    st.tuples(st.integers(0, 500), VALUES | st.just(ABSENT)), min_size=1, max_size=2
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a reply, the whole reply first."""
    yield path
    inner = value.items() if isinstance(value, dict) else ()
    for key, part in enumerate(value[:3]) if isinstance(value, list) else inner:
        yield from places(part, (*path, key))


def with_changes(reply: Any, changes: list[tuple[int, Any]]) -> Any:
    root = {"": copy.deepcopy(reply)}
    for number, value in changes:
        paths = list(places(root[""]))
        *outer, last = ("", *paths[number % len(paths)])
        holder: Any = root
        for key in outer:
            holder = holder[key]
        if value is not ABSENT:
            holder[last] = value
        elif last != "":
            del holder[last]
    return root[""]


async def use_chat(server: Any) -> None:
    completion = await server.chat_completion(messages=ASKED, logprobs=True)
    assert isinstance(completion.id, str)
    for choice in completion.choices:
        assert isinstance(choice.index, int)
        assert choice.finish_reason is None or isinstance(choice.finish_reason, str)
        assert choice.message.content is None or isinstance(choice.message.content, str)
        assert choice.message.role
        for call in choice.message.tool_calls or ():
            assert call.type == "custom" or call.function.name + call.function.arguments
        for entry in (choice.logprobs and choice.logprobs.content) or ():
            assert math.isfinite(float(entry.logprob))
    assert completion.usage is None or completion.usage.completion_tokens is not True


async def use_text(server: Any) -> None:
    completion = await server.completion(prompt="hello")
    assert all(isinstance(choice.text, str) for choice in completion.choices)
    assert completion.usage is None or completion.usage.completion_tokens is not True


async def use_tokens(server: Any) -> None:
    session = ManagedServer(server, char_tokenizer())
    completion = await session.chat_completion(messages=ASKED, max_tokens=8)
    for node in session.nodes_for(completion):
        assert all(type(token) is int for token in node.tokens)
        assert all(math.isfinite(value) for value in node.logprobs)
        assert len(node.tokens) == len(node.logprobs) == len(node.masked_tokens)


async def use_logprobs(server: Any) -> None:
    logprobs = await server.get_logprobs(input_ids=[104, 105], top_k=1)
    assert logprobs["prompt_tokens"] == [104, 105]


ROUTES: dict[str, tuple[str, tuple[str, ...], Callable[[Any], Awaitable[None]]]] = {
    "chat": ("openai", (), use_chat),
    "text": ("openai", (), use_text),
    "vllm-generate": ("vllm", ("generate",), use_tokens),
    "vllm-scale-out": ("vllm", ("scale_out",), use_tokens),
    "vllm-completions": ("vllm", (), use_tokens),
    "vllm-logprobs": ("vllm", ("generate",), use_logprobs),
    "vllm-completions-logprobs": ("vllm", (), use_logprobs),
    "sglang": ("sglang", ("sglang",), use_tokens),
    "sglang-logprobs": ("sglang", ("sglang",), use_logprobs),
    "trl": ("trl", ("trl",), use_tokens),
    "trl-chat": ("trl", ("trl",), use_chat),
    "trl-text": ("trl", ("trl",), use_text),
}


@pytest.mark.parametrize("route", ROUTES)
def test_any_reply_is_used_rightly_or_is_a_typed_error_with_the_address(
    route: str, no_backoff: None
) -> None:
    server_type, shapes, use = ROUTES[route]
    fake = ForeignInference(shapes)

    async def ask(url: str) -> None:
        config = APIServerConfig(
            base_url=f"{url}/v1", server_type=server_type, health_check=False, model_name="m"
        )
        server = backend_for(server_type)(config)
        if server_type != "openai":
            server.offer_tokenizer(char_tokenizer())
        try:
            await use(server)
        except AtroposError as error:
            assert url in str(error), error
        finally:
            await server.close()

    with fake.running() as url:

        @settings(max_examples=25, deadline=None)
        @given(changes=CHANGES)
        def check(changes: list[tuple[int, Any]]) -> None:
            fake.changed = lambda reply: with_changes(reply, changes)
            asyncio.run(ask(url))

        asyncio.run(ask(url))
        check()


@pytest.mark.parametrize(
    ("choice", "field", "shape"),
    [
        ({"message": None}, "choices[0].message", "absent or null"),
        ({"message": {"content": [1]}}, "choices[0].message.content", "a list"),
        ({"message": {}, "logprobs": []}, "choices[0].logprobs", "a list"),
        (
            {"message": {}, "logprobs": {"content": [{"logprob": "x"}]}},
            "choices[0].logprobs.content[0].logprob",
            "a text",
        ),
        ("a", "choices[0]", "a text"),
    ],
)
def test_the_error_names_address_route_field_and_remedy(choice, field, shape) -> None:
    with pytest.raises(ForeignReply) as raised:
        checked_choices(ReplyPart({"choices": [choice]}, URL), "chat.completion")
    assert str(raised.value) == (
        f"{URL}: the response has another form than that of this server_type: {field} is {shape},"
        f" not {raised.value.wanted}; set server_type to the kind of this server, or base_url to"
        " another"
    )


def test_a_reply_without_choices_is_an_outage_that_quotes_the_gateways_error() -> None:
    overload = {"choices": None, "error": {"message": "upstream is overloaded"}}
    with pytest.raises(InferenceUnavailable, match="has no choices: upstream is overloaded"):
        checked_choices(ReplyPart(overload, URL), "chat.completion")


def test_what_callers_do_not_need_is_filled_in_or_left_out() -> None:
    call = {"id": "c", "function": {"name": "add", "arguments": {"a": 1}}}
    message = {"content": None, "tool_calls": [call]}
    read = checked_choices(
        ReplyPart({"choices": [{"message": message}], "usage": [3]}, URL), "chat.completion"
    )
    (choice,) = read["choices"]
    assert choice["index"] == 0 and choice["message"]["role"] == "assistant"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert read["usage"] is None and read["id"].startswith("reply-")


def test_errors_of_reading_get_the_address_once() -> None:
    with pytest.raises(TokensMissing, match=f"^{URL}: 2 tokens came with 1 logprobs$"):
        with expected_form(URL):
            raise TokensMissing("2 tokens came with 1 logprobs")
    with pytest.raises(ForeignReply, match=f"^{URL}: .* TypeError: no number"):
        with expected_form(URL):
            raise TypeError("no number")
