"""OpenAI's chat and text completions: requests, replies and streamed chunks. Pure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, ClassVar, TypeVar

from atroposlib.errors import InferenceRefused
from atroposlib.generation.proxy.apis.agent_api import AgentApi, data_frame
from atroposlib.generation.proxy.apis.exchange import (
    ApiBody,
    Choice,
    Json,
    SamplingRequest,
    SamplingResponse,
    function_tools,
    plain_messages,
    reject_formats,
    sampling_of,
)
from atroposlib.generation.sampling.generation import stop_strings, token_usage

PIECE_CHARS = 64  # characters of text per streamed chunk


class CompletionBody(ApiBody, kw_only=True):
    """Fields of chat and text completions that are read here; the rest is passed on."""

    max_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream_options: dict[str, Any] | None = None
    return_token_ids: bool | None = None


class ChatBody(CompletionBody, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    return_nodes: bool | None = None


class TextBody(CompletionBody, kw_only=True):
    prompt: str | list[int | str | list[int]]  # a single prompt per request
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


B = TypeVar("B", bound=CompletionBody)


class CompletionsApi(AgentApi[B]):
    """Common parts of both completions: envelope, token ids, stream of the choices in order."""

    id_prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    @abstractmethod
    def whole(self, choice: Choice, response: SamplingResponse) -> Json:
        """A choice of the reply, without its index."""

    @abstractmethod
    def chunks(self, choice: Choice) -> Iterator[Json]:
        """The choice as the chunks of a stream."""

    def reply(self, response: SamplingResponse) -> Json:
        choices = []
        for i, choice in enumerate(response.choices):
            shown = {"index": i, **self.whole(choice, response)}
            if self.body.return_token_ids:
                shown["token_ids"] = choice.generation.tokens
            choices.append(shown)
        return self._envelope(self.kind, response, choices, with_usage=True)

    def frames(self, response: SamplingResponse) -> Iterator[bytes]:
        for i, choice in enumerate(response.choices):
            for chunk in self.chunks(choice):
                shown = {"index": i, **chunk}
                yield data_frame(self._envelope(self.chunk_kind, response, [shown]))
        if (self.body.stream_options or {}).get("include_usage"):
            yield data_frame(self._envelope(self.chunk_kind, response, [], with_usage=True))
        yield b"data: [DONE]\n\n"

    def token_texts(self, choice: Choice) -> list[tuple[str, float]]:
        """Text and logprob of each sampled token."""
        decode, sampled = self.session.managed.tokenizer.decode, choice.generation
        return [(str(decode([t])), lp) for t, lp in zip(sampled.tokens, sampled.logprobs)]

    def _envelope(
        self,
        kind: str,
        response: SamplingResponse,
        choices: list[Json],
        *,
        with_usage: bool = False,
    ) -> Json:
        usage = token_usage(response.prompt_tokens, response.completion_tokens)
        return {
            "id": f"{self.id_prefix}-{response.id}",
            "object": kind,
            "created": response.created,
            "model": response.model,
            "choices": choices,
            **({"usage": usage} if with_usage else {}),
        }


class ChatApi(CompletionsApi[ChatBody]):
    """POST chat/completions. ``return_token_ids`` adds token ids in vLLM's fields."""

    body_type = ChatBody
    rejected_fields = ("functions", "function_call", "audio", "web_search_options")
    id_prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def read(self, raw: Json) -> SamplingRequest:
        body = self.body
        reject_formats(body.response_format)
        limit = body.max_completion_tokens or body.max_tokens
        return SamplingRequest(
            messages=plain_messages(body.messages),
            tools=function_tools(body.tools),
            tool_choice=body.tool_choice,
            stop=stop_strings(raw),
            sampling=sampling_of(raw, ChatBody, max_tokens=limit),
            template=body.chat_template_kwargs,
            split=body.split,
            one_tool_call=body.parallel_tool_calls is False,
            keep_prompt=bool(body.return_token_ids),
        )

    def reply(self, response: SamplingResponse) -> Json:
        reply = super().reply(response)
        if self.body.return_token_ids:
            reply["prompt_token_ids"] = response.prompt_ids
        if self.body.return_nodes:
            nodes = self.session.managed.nodes_for(response.completion)
            reply["nodes"] = [node.model_dump() for node in nodes]
        return reply

    def whole(self, choice: Choice, response: SamplingResponse) -> Json:
        shown = {"message": chat_message(choice), "finish_reason": choice.finish_reason}
        return {**shown, **self._logprobs(choice)}

    def chunks(self, choice: Choice) -> Iterator[Json]:
        opening = {"role": "assistant", "content": "" if choice.content else None}
        yield {"delta": opening, "finish_reason": None, **self._logprobs(choice)}
        for text in pieces(choice.content or ""):
            yield {"delta": {"content": text}, "finish_reason": None}
        for delta in _call_deltas(choice.tool_calls):
            yield {"delta": {"tool_calls": [delta]}, "finish_reason": None}
        yield {"delta": {}, "finish_reason": choice.finish_reason}

    def _logprobs(self, choice: Choice) -> Json:
        """Logprob of each sampled token, if requested; ``top_logprobs`` holds only this token."""
        if not self.body.logprobs:
            return {}
        if not choice.generation.tokens:
            return {"logprobs": None}
        entries = []
        for text, logprob in self.token_texts(choice):
            entry = {"token": text, "logprob": logprob, "bytes": list(text.encode())}
            entries.append(
                {**entry, "top_logprobs": [entry] if self.body.top_logprobs else []}
            )
        return {"logprobs": {"content": entries, "refusal": None}}


class TextApi(CompletionsApi[TextBody]):
    """POST completions."""

    body_type = TextBody
    id_prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def read(self, raw: Json) -> SamplingRequest:
        body = self.body
        if body.echo or body.suffix or (body.best_of or 1) > 1:
            raise InferenceRefused(400, "echo, suffix and best_of are not served")
        return SamplingRequest(
            prompt=_one_prompt(body.prompt),
            stop=stop_strings(raw),
            sampling=sampling_of(raw, TextBody, max_tokens=body.max_tokens),
            split=body.split,
            keep_prompt=bool(body.return_token_ids),
        )

    def whole(self, choice: Choice, response: SamplingResponse) -> Json:
        shown = self._last_chunk(choice.content or "", choice)
        if self.body.return_token_ids:
            shown["prompt_token_ids"] = response.prompt_ids
        return shown

    def chunks(self, choice: Choice) -> Iterator[Json]:
        for text in pieces(choice.content or ""):
            yield {"text": text, "logprobs": None, "finish_reason": None}
        yield self._last_chunk("", choice)

    def _last_chunk(self, text: str, choice: Choice) -> Json:
        reason = choice.finish_reason
        return {"text": text, "logprobs": self._logprobs(choice), "finish_reason": reason}

    def _logprobs(self, choice: Choice) -> Json | None:
        """Logprob of each sampled token, if requested."""
        if self.body.logprobs is None or not choice.generation.tokens:
            return None
        texts, logprobs = zip(*self.token_texts(choice))
        return {
            "tokens": texts,
            "token_logprobs": logprobs,
            "top_logprobs": [{text: logprob} for text, logprob in zip(texts, logprobs)],
            "text_offset": [0, *accumulate(map(len, texts[:-1]))],
        }


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


def chat_message(choice: Choice) -> Json:
    """A choice as the message of a reply, and of later requests."""
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
