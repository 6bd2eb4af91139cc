"""TRL's ``vllm-serve``: text or token ids in, ``completion_ids`` out.

Newer servers also return ``prompt_ids`` and ``logprobs``. Samples of older servers cannot be
trained on: token requests raise TokensMissing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError, InferenceRefused, TokensMissing
from atroposlib.generation.chat.template import render
from atroposlib.generation.engines.openai import (
    TokenServer,
    chat_completion_of,
    completion_of,
    completion_payload,
    expect_outputs,
)
from atroposlib.generation.sampling.generation import (
    NEUTRAL,
    UNKNOWN_VERSION,
    Generation,
    request_options,
    sampling_params,
)
from atroposlib.generation.sampling.reply_form import ReplyPart, expected_form
from atroposlib.wire.messages import NEUTRAL_CUTS

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

GENERATE_PATH = "/generate/"
UNPROCESSABLE = 422

# Fields of the request; the server silently drops further fields.
FIELDS = {
    "n": 1,
    **{name: NEUTRAL[name] for name in ("repetition_penalty", "temperature", *NEUTRAL_CUTS)},
    "max_tokens": 1024,
}
_NOT_OURS = ("chat_template_kwargs", "tools", "tool_choice")


class TrlVllmServer(TokenServer):
    """Chats are rendered and decoded here: the server takes prompts and ids only."""

    health_path = "/health/"

    async def _chat_completion_wrapper(self, **kwargs: Any) -> ChatCompletion:
        await self._load_tokenizer()
        template = {**(kwargs.get("chat_template_kwargs") or {})}
        if kwargs.get("tools"):
            template["tools"] = kwargs["tools"]
        prompt = render(self.tokenizer, kwargs["messages"], template_kwargs=template)
        payload = await self._complete_text("chat.completion", prompt, kwargs)
        for choice in payload["choices"]:
            choice["message"] = {"role": "assistant", "content": choice.pop("text")}
        return chat_completion_of(payload)

    async def _completion_wrapper(self, **kwargs: Any) -> Completion:
        await self._load_tokenizer()
        payload = await self._complete_text("text_completion", kwargs["prompt"], kwargs)
        return completion_of(payload)

    async def _generate_wrapper(self, **kwargs: Any) -> list[Generation]:
        ids = list(kwargs["input_ids"])
        await self._load_tokenizer()
        body = {**generate_body(ids, sampling_params(kwargs)), "logprobs": 0}
        try:
            answer = await self._post(body, kwargs)
        except InferenceRefused as refusal:
            if refusal.status_code != UNPROCESSABLE:
                raise
            raise TokensMissing(
                f"{self._parts.root_url} takes text only, so tokens cannot be sent exactly; use a "
                "newer TRL, or plain vLLM with server_type vllm"
            ) from refusal
        with expected_form(answer.where):
            outputs = read_generations(answer, ids, self.tokenizer.eos_token_id)
        return expect_outputs(outputs, body["n"], answer.where)

    async def _complete_text(
        self, kind: str, prompt: str, kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        if kwargs.get("stream"):
            raise ConfigError("stream: completions are returned whole; leave it out")
        rendered = {k: v for k, v in kwargs.items() if k not in _NOT_OURS}
        answer = await self._post(generate_body(prompt, sampling_params(rendered)), kwargs)
        rows = [row.token_ids() for row in answer.field("completion_ids").parts()]
        eos = self.tokenizer.eos_token_id
        choices = [
            {
                "index": i,
                "finish_reason": finish_reason(row, eos),
                "text": str(self.tokenizer.decode(up_to_eos(row, eos))),
                "logprobs": None,
            }
            for i, row in enumerate(rows)
        ]
        prompts = answer.field("prompt_ids")
        prompted = (
            len(prompts.parts()[0].token_ids())
            if prompts.value
            else len(self.tokenizer.encode(prompt))
        )
        sampled = sum(map(len, rows))
        return completion_payload(kind, self.config.model_name, choices, prompted, sampled)

    async def _post(self, body: Mapping[str, Any], kwargs: Mapping[str, Any]) -> ReplyPart:
        url = f"{self._parts.root_url}{GENERATE_PATH}"
        reply = await self._parts.http.post(url, body, **request_options(kwargs))
        answer = ReplyPart(reply.payload, url)
        answer.field("completion_ids").require()
        return answer


def generate_body(prompt: str | list[int], params: Mapping[str, Any]) -> dict[str, Any]:
    """Body for a prompt. Parameters without a field go into ``generation_kwargs``, if in force."""
    body = {"prompts": [prompt], **FIELDS, **{k: params[k] for k in FIELDS if k in params}}
    rest = {
        k: v for k, v in params.items() if k not in FIELDS and (k, v) not in NEUTRAL.items()
    }
    return {**body, "generation_kwargs": rest} if rest else body


def read_generations(reply: ReplyPart, ids: list[int], eos: int | None) -> list[Generation]:
    """Outputs of a payload. Raises TokensMissing without logprobs, or for another prompt."""
    prompts = reply.field("prompt_ids").require()
    rows = reply.field("logprobs").require().parts()
    outputs = [part.token_ids() for part in reply.field("completion_ids").require().parts()]
    if any(prompt != ids for prompt in prompts.entries()):
        raise TokensMissing(
            f"{prompts.where}: the server continued tokens other than those sent"
        )
    if len(rows) != len(outputs):
        raise TokensMissing(f"{reply.where}: lists of different lengths in the response")
    return [
        Generation(
            prompt_ids=ids,
            tokens=tokens,
            logprobs=[_number(value) for value in rows[i].parts()],
            versions=[UNKNOWN_VERSION] * len(tokens),
            finish_reason=finish_reason(tokens, eos),
        )
        for i, tokens in enumerate(outputs)
    ]


def finish_reason(tokens: Sequence[int], eos: int | None) -> str:
    """ "stop" if the tokens hold the end token, else "length": the server returns none."""
    return "stop" if eos in tokens else "length"


def up_to_eos(tokens: Sequence[int], eos: int | None) -> list[int]:
    return list(tokens[: tokens.index(eos)] if eos is not None and eos in tokens else tokens)


def _number(value: ReplyPart) -> float:
    """A logprob that is a number, or a list of only the sampled token's logprob."""
    while isinstance(value.value, list):
        value = (value.parts() or [ReplyPart(None, value.where, value.name)])[0]
    return value.require().number()
