"""Answers as OpenAI chat and text completions, whole or as the chunks of a stream. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from atroposlib.generation.proxy.apis.request import (
    Answer,
    ChatBody,
    Choice,
    Json,
    TextBody,
)

PIECE_CHARS = 64  # of text per streamed chunk

Decode = Callable[[list[int]], str]


def pieces(text: str) -> Iterator[str]:
    """The text in the portions in which it is streamed."""
    return (text[i : i + PIECE_CHARS] for i in range(0, len(text), PIECE_CHARS))


def usage_of(answer: Answer) -> Json:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


def chat_reply(answer: Answer, body: ChatBody, decode: Decode) -> Json:
    """A chat completion. ``return_token_ids`` adds the ids under vLLM's names."""
    choices = []
    for i, choice in enumerate(answer.choices):
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
    reply = _envelope("chatcmpl", "chat.completion", answer, choices)
    if body.return_token_ids:
        reply["prompt_token_ids"] = answer.prompt_ids
    return reply


def text_reply(answer: Answer, body: TextBody, decode: Decode) -> Json:
    """A text completion."""
    choices = []
    for i, choice in enumerate(answer.choices):
        wanted = body.logprobs is not None
        shown: Json = {
            "index": i,
            "text": choice.content or "",
            "logprobs": text_logprobs(choice, decode) if wanted else None,
            "finish_reason": choice.finish_reason,
        }
        if body.return_token_ids:
            shown |= {"token_ids": choice.tokens, "prompt_token_ids": answer.prompt_ids}
        choices.append(shown)
    return _envelope("cmpl", "text_completion", answer, choices)


def chat_chunks(answer: Answer, body: ChatBody, decode: Decode) -> Iterator[Json]:
    """The chunks of a streamed chat completion, choice after choice."""

    def chunk(i: int, delta: Json, reason: str | None = None) -> Json:
        choice: Json = {"index": i, "delta": delta, "finish_reason": reason}
        return _envelope(
            "chatcmpl", "chat.completion.chunk", answer, [choice], with_usage=False
        )

    for i, choice in enumerate(answer.choices):
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
        yield _envelope("chatcmpl", "chat.completion.chunk", answer, [])


def text_chunks(answer: Answer, body: TextBody, decode: Decode) -> Iterator[Json]:
    """The chunks of a streamed text completion."""

    def chunk(i: int, text: str, reason: str | None = None) -> Json:
        choice: Json = {"index": i, "text": text, "logprobs": None, "finish_reason": reason}
        return _envelope("cmpl", "text_completion", answer, [choice], with_usage=False)

    for i, choice in enumerate(answer.choices):
        for text in pieces(choice.content or ""):
            yield chunk(i, text)
        last = chunk(i, "", choice.finish_reason)
        if body.logprobs is not None:
            last["choices"][0]["logprobs"] = text_logprobs(choice, decode)
        yield last
    if (body.stream_options or {}).get("include_usage"):
        yield _envelope("cmpl", "text_completion", answer, [])


def chat_logprobs(choice: Choice, decode: Decode, top: int) -> Json | None:
    """Logprob of each sampled token; the alternatives are known only of the token itself."""
    if not choice.tokens:
        return None
    entries = []
    for text, logprob in _spelled(choice, decode):
        entry = {"token": text, "logprob": logprob, "bytes": list(text.encode())}
        entries.append({**entry, "top_logprobs": [entry] if top else []})
    return {"content": entries, "refusal": None}


def text_logprobs(choice: Choice, decode: Decode) -> Json | None:
    """As :func:`chat_logprobs`, in the older shape of text completions."""
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
    prefix: str, kind: str, answer: Answer, choices: list[Json], *, with_usage: bool = True
) -> Json:
    reply: Json = {
        "id": f"{prefix}-{answer.id}",
        "object": kind,
        "created": answer.created,
        "model": answer.model,
        "choices": choices,
    }
    return {**reply, "usage": usage_of(answer)} if with_usage else reply
