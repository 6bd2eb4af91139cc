"""OpenAI's chat and text completions: requests, replies and streamed chunks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from atroposlib.errors import InferenceRefused
from atroposlib.generation.proxy.apis.agent_api import AgentApi, ApiSession, data_frame
from atroposlib.generation.proxy.apis.exchange import (
    Choice,
    Json,
    Kind,
    SamplingRequest,
    SamplingResponse,
    function_tools,
    parsed,
    plain_messages,
    reject_formats,
    sampling_of,
)

PIECE_CHARS = 64  # of text per streamed chunk
REJECTED_FIELDS = ("functions", "function_call", "audio", "web_search_options")

Decode = Callable[[list[int]], str]


class ChatBody(msgspec.Struct, kw_only=True):
    """Fields of a chat request that are read here; all others are passed on."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    split: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_nodes: bool | None = None


class TextBody(msgspec.Struct, kw_only=True):
    """Fields of a text completion that are read here. One prompt per request."""

    prompt: str | list[int | str | list[int]]
    max_tokens: int | None = None
    temperature: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    split: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    return_token_ids: bool | None = None


class ChatApi(AgentApi):
    """POST chat/completions."""

    def __init__(self, session: ApiSession, raw: Json) -> None:
        self.body = parsed(raw, ChatBody)
        self.request = chat_request(raw, self.body)
        self.stream = bool(self.body.stream)
        self._session = session

    def reply(self, response: SamplingResponse) -> Json:
        reply = chat_reply(response, self.body, decoder_of(self._session))
        if self.body.return_nodes:
            nodes = self._session.managed.nodes_for(response.completion)
            reply["nodes"] = [node.model_dump() for node in nodes]
        return reply

    def frames(self, response: SamplingResponse) -> Iterator[bytes]:
        yield from map(data_frame, chat_chunks(response, self.body, decoder_of(self._session)))
        yield b"data: [DONE]\n\n"


class TextApi(AgentApi):
    """POST completions."""

    def __init__(self, session: ApiSession, raw: Json) -> None:
        self.body = parsed(raw, TextBody)
        self.request = text_request(raw, self.body)
        self.stream = bool(self.body.stream)
        self._session = session

    def reply(self, response: SamplingResponse) -> Json:
        return text_reply(response, self.body, decoder_of(self._session))

    def frames(self, response: SamplingResponse) -> Iterator[bytes]:
        yield from map(data_frame, text_chunks(response, self.body, decoder_of(self._session)))
        yield b"data: [DONE]\n\n"


def decoder_of(session: ApiSession) -> Decode:
    """Text of single tokens, for logprobs."""
    tokenizer: Any = getattr(session.managed, "tokenizer", None)

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids))

    return decode


def chat_request(raw: Mapping[str, Any], body: ChatBody) -> SamplingRequest:
    """The common form of a chat request.

    Raises:
        InferenceRefused: 400; no messages, or an output format that needs constrained
            decoding.
        ConfigError: content that is not text.
    """
    reject_formats(body.response_format)
    for name in REJECTED_FIELDS:
        if raw.get(name):
            raise InferenceRefused(400, f"{name}: not served")
    return SamplingRequest(
        messages=plain_messages(body.messages),
        tools=function_tools(body.tools),
        tool_choice=body.tool_choice,
        stop=stop_list(body.stop),
        sampling=sampling_of(
            raw, ChatBody, max_tokens=body.max_completion_tokens or body.max_tokens
        ),
        template=body.chat_template_kwargs,
        split=body.split,
        one_tool_call=body.parallel_tool_calls is False,
        keep_prompt=bool(body.return_token_ids),
    )


def text_request(raw: Mapping[str, Any], body: TextBody) -> SamplingRequest:
    """The common form of a text completion.

    Raises:
        InferenceRefused: 400; several prompts, or a field that is not served.
    """
    if body.echo or body.suffix or (body.best_of or 1) > 1:
        raise InferenceRefused(400, "echo, suffix and best_of are not served")
    return SamplingRequest(
        kind=Kind.TEXT,
        prompt=_one_prompt(body.prompt),
        stop=stop_list(body.stop),
        sampling=sampling_of(raw, TextBody, max_tokens=body.max_tokens),
        split=body.split,
        keep_prompt=bool(body.return_token_ids),
    )


def stop_list(stop: str | Sequence[str] | None) -> list[str] | None:
    if stop is None:
        return None
    return [stop] if isinstance(stop, str) else [text for text in stop if text] or None


def _one_prompt(prompt: str | list[Any]) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        return prompt[0]
    if not prompt or not all(isinstance(token, int) for token in prompt):
        raise InferenceRefused(400, "prompt: one text or one list of token ids per request")
    return list(prompt)


def pieces(text: str) -> Iterator[str]:
    """Split a text into the chunks of a stream."""
    return (text[i : i + PIECE_CHARS] for i in range(0, len(text), PIECE_CHARS))


def usage_of(response: SamplingResponse) -> Json:
    return {
        "prompt_tokens": response.prompt_tokens,
        "completion_tokens": response.completion_tokens,
        "total_tokens": response.prompt_tokens + response.completion_tokens,
    }


def chat_reply(response: SamplingResponse, body: ChatBody, decode: Decode) -> Json:
    """A chat completion. ``return_token_ids`` adds token ids in vLLM's fields."""
    choices = []
    for i, choice in enumerate(response.choices):
        shown: Json = {
            "index": i,
            "message": _message(choice),
            "finish_reason": choice.finish_reason,
        }
        if body.logprobs:
            shown["logprobs"] = chat_logprobs(choice, decode, body.top_logprobs or 0)
        if body.return_token_ids:
            shown["token_ids"] = choice.tokens
        choices.append(shown)
    reply = _envelope("chatcmpl", "chat.completion", response, choices)
    if body.return_token_ids:
        reply["prompt_token_ids"] = response.prompt_ids
    return reply


def text_reply(response: SamplingResponse, body: TextBody, decode: Decode) -> Json:
    """A text completion."""
    choices = []
    for i, choice in enumerate(response.choices):
        wanted = body.logprobs is not None
        shown: Json = {
            "index": i,
            "text": choice.content or "",
            "logprobs": text_logprobs(choice, decode) if wanted else None,
            "finish_reason": choice.finish_reason,
        }
        if body.return_token_ids:
            shown |= {"token_ids": choice.tokens, "prompt_token_ids": response.prompt_ids}
        choices.append(shown)
    return _envelope("cmpl", "text_completion", response, choices)


def chat_chunks(response: SamplingResponse, body: ChatBody, decode: Decode) -> Iterator[Json]:
    """The chunks of a streamed chat completion, choice after choice."""

    def chunk(i: int, delta: Json, reason: str | None = None) -> Json:
        choice: Json = {"index": i, "delta": delta, "finish_reason": reason}
        return _envelope(
            "chatcmpl", "chat.completion.chunk", response, [choice], with_usage=False
        )

    for i, choice in enumerate(response.choices):
        first = chunk(i, {"role": "assistant", "content": "" if choice.content else None})
        if body.logprobs:
            logprobs = chat_logprobs(choice, decode, body.top_logprobs or 0)
            first["choices"][0]["logprobs"] = logprobs
        yield first
        for text in pieces(choice.content or ""):
            yield chunk(i, {"content": text})
        for delta in _call_deltas(choice.tool_calls):
            yield chunk(i, {"tool_calls": [delta]})
        yield chunk(i, {}, choice.finish_reason)
    if (body.stream_options or {}).get("include_usage"):
        yield _envelope("chatcmpl", "chat.completion.chunk", response, [])


def text_chunks(response: SamplingResponse, body: TextBody, decode: Decode) -> Iterator[Json]:
    """The chunks of a streamed text completion."""

    def chunk(i: int, text: str, reason: str | None = None) -> Json:
        choice: Json = {"index": i, "text": text, "logprobs": None, "finish_reason": reason}
        return _envelope("cmpl", "text_completion", response, [choice], with_usage=False)

    for i, choice in enumerate(response.choices):
        for text in pieces(choice.content or ""):
            yield chunk(i, text)
        last = chunk(i, "", choice.finish_reason)
        if body.logprobs is not None:
            last["choices"][0]["logprobs"] = text_logprobs(choice, decode)
        yield last
    if (body.stream_options or {}).get("include_usage"):
        yield _envelope("cmpl", "text_completion", response, [])


def chat_logprobs(choice: Choice, decode: Decode, top: int) -> Json | None:
    """Logprob of each sampled token. ``top_logprobs`` holds the sampled token only."""
    if not choice.tokens:
        return None
    entries = []
    for text, logprob in _spelled(choice, decode):
        entry = {"token": text, "logprob": logprob, "bytes": list(text.encode())}
        entries.append({**entry, "top_logprobs": [entry] if top else []})
    return {"content": entries, "refusal": None}


def text_logprobs(choice: Choice, decode: Decode) -> Json | None:
    """Logprob of each sampled token, in the format of text completions."""
    if not choice.tokens:
        return None
    spelled = list(_spelled(choice, decode))
    offsets, at = [], 0
    for text, _ in spelled:
        offsets.append(at)
        at += len(text)
    return {
        "tokens": [text for text, _ in spelled],
        "token_logprobs": [logprob for _, logprob in spelled],
        "top_logprobs": [{text: logprob} for text, logprob in spelled],
        "text_offset": offsets,
    }


def _spelled(choice: Choice, decode: Decode) -> Iterable[tuple[str, float]]:
    return ((decode([t]), lp) for t, lp in zip(choice.tokens, choice.logprobs))


def _message(choice: Choice) -> Json:
    message: Json = {"role": "assistant", "content": choice.content}
    if choice.tool_calls:
        message["tool_calls"] = choice.tool_calls
    return message


def _call_deltas(calls: Sequence[Json]) -> Iterator[Json]:
    for i, call in enumerate(calls):
        function = call["function"]
        opening = {"name": function["name"], "arguments": ""}
        yield {"index": i, "id": call["id"], "type": "function", "function": opening}
        for text in pieces(function["arguments"]):
            yield {"index": i, "function": {"arguments": text}}


def _envelope(
    prefix: str,
    kind: str,
    response: SamplingResponse,
    choices: list[Json],
    *,
    with_usage: bool = True,
) -> Json:
    reply: Json = {
        "id": f"{prefix}-{response.id}",
        "object": kind,
        "created": response.created,
        "model": response.model,
        "choices": choices,
    }
    return {**reply, "usage": usage_of(response)} if with_usage else reply
