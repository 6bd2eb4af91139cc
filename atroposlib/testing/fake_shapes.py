"""Response bodies of inference servers, filled with the samples of a fake. Pure.

Ids and text follow :mod:`atroposlib.testing.tiny`, ``ASCII_ALPHABET`` included: a test
whose texts need more than ``ALPHABET`` uses ``char_tokenizer(ASCII_ALPHABET)``. The logprob
of token ``t`` is always ``fake_logprob(t)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.testing.tiny import ASCII_ALPHABET, ROLE_TOKENS

VOCABULARY = (*ROLE_TOKENS, *ASCII_ALPHABET)
END = ROLE_TOKENS.index("<|end|>")
_ID_OF = {token: i for i, token in enumerate(VOCABULARY)}

Json = dict[str, Any]


def fake_logprob(token: int) -> float:
    """Negative, different for neighbouring ids, exact in binary: -1/8 to -7/8."""
    return -(1 + token % 7) / 8


def encode(text: str) -> list[int]:
    """Ids of text; each role marker is a single token."""
    ids: list[int] = []
    while text:
        marker = next((m for m in ROLE_TOKENS if text.startswith(m)), text[0])
        ids.append(_ID_OF.get(marker, _ID_OF["<|pad|>"]))
        text = text[len(marker) :]
    return ids


def decode(ids: Iterable[int]) -> str:
    return "".join(VOCABULARY[i] for i in ids)


def visible(tokens: Iterable[int]) -> str:
    """Text without role markers, as servers return it."""
    return "".join(VOCABULARY[t] for t in tokens if VOCABULARY[t] not in ROLE_TOKENS)


@dataclass(frozen=True)
class Sampled:
    """A choice: ids, finish reason, and the text before a stop string."""

    tokens: list[int]
    reason: str
    text: str
    version: int | None = 0


@dataclass(frozen=True)
class FakeResponse:
    """Prompt and sampled choices, the source of every response body."""

    prompt: list[int]
    choices: list[Sampled]
    has_logprobs: bool = True
    has_spans: bool = True

    @property
    def usage(self) -> Json:
        sampled = sum(len(choice.tokens) for choice in self.choices)
        prompt_tokens = len(self.prompt)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": sampled,
            "total_tokens": prompt_tokens + sampled,
        }


def spans(answer: FakeResponse, one: Sampled) -> list[Json] | None:
    if not answer.has_spans:
        return None
    return [{"version": one.version, "start": 0, "end": len(one.tokens)}]


def prompt_logprobs(ids: Sequence[int], k: int | None) -> list[Any] | None:
    """vLLM's shape; ids 0..k-1 stand for the most likely tokens."""
    if k is None:
        return None
    return [None] + [
        {str(t): {"logprob": fake_logprob(t)} for t in dict.fromkeys([token, *range(k)])}
        for token in ids[1:]
    ]


def demo(answer: FakeResponse, body: Json) -> Json:
    """POST /generate of vLLM's demo server and of this repository's server."""
    choices = answer.choices
    reply: Json = {
        "text": [choice.text for choice in choices],
        "finish_reasons": [choice.reason for choice in choices],
        "prompt_token_ids": answer.prompt,
        "token_ids": [choice.tokens for choice in choices],
        "prompt_logprobs": prompt_logprobs(answer.prompt, body.get("prompt_logprobs")),
    }
    if answer.has_logprobs:
        reply["logprobs"] = [
            [[{str(t): fake_logprob(t)}] for t in choice.tokens] for choice in choices
        ]
    if answer.has_spans:
        reply["weight_versions"] = [spans(answer, choice) for choice in choices]
    return reply


def scale_out(answer: FakeResponse, params: Json) -> Json:
    """POST /inference/v1/generate of vLLM."""
    return {
        "request_id": "fake",
        "prompt_logprobs": prompt_logprobs(answer.prompt, params.get("prompt_logprobs")),
        "choices": [
            {
                "index": i,
                "token_ids": choice.tokens,
                "finish_reason": choice.reason,
                "weight_versions": spans(answer, choice),
                "logprobs": _token_entries(choice.tokens) if answer.has_logprobs else None,
            }
            for i, choice in enumerate(answer.choices)
        ],
    }


def sglang(answer: FakeResponse, body: Json) -> Any:
    """POST /generate of SGLang: an object, or a list of objects where n is above 1."""
    outputs = []
    for choice in answer.choices:
        meta: Json = {
            "finish_reason": {"type": choice.reason},
            "prompt_tokens": len(answer.prompt),
            "completion_tokens": len(choice.tokens),
            "weight_version": str(choice.version),
        }
        if body.get("return_logprob") and answer.has_logprobs:
            meta["output_token_logprobs"] = [_triple(t) for t in choice.tokens]
        if body.get("logprob_start_len") == 0 and answer.has_logprobs:
            first, *rest = answer.prompt
            meta["input_token_logprobs"] = [[None, first, None], *map(_triple, rest)]
            k = int(body.get("top_logprobs_num") or 0)
            if k:
                tops = [_triple(t) for t in range(k)]
                meta["input_top_logprobs"] = [None, *([tops] * len(rest))]
        outputs.append({"text": choice.text, "output_ids": choice.tokens, "meta_info": meta})
    return outputs[0] if len(outputs) == 1 else outputs


def trl(answer: FakeResponse, body: Json, since_logprobs: bool) -> Json:
    """POST /generate/ of TRL; older servers return nothing but ``completion_ids``."""
    reply: Json = {"completion_ids": [choice.tokens for choice in answer.choices]}
    if since_logprobs:
        reply["prompt_ids"] = [answer.prompt]
        if answer.has_logprobs:
            reply["logprobs"] = [
                [[fake_logprob(t)] for t in choice.tokens] for choice in answer.choices
            ]
            reply["logprob_token_ids"] = [
                [[t] for t in choice.tokens] for choice in answer.choices
            ]
    return reply


def completions(answer: FakeResponse, body: Json) -> Json:
    """POST /v1/completions, with vLLM's additions on request."""
    choices = []
    for i, sampled in enumerate(answer.choices):
        choice: Json = {"index": i, "text": sampled.text, "finish_reason": sampled.reason}
        if body.get("logprobs") is not None and answer.has_logprobs:
            choice["logprobs"] = {"token_logprobs": [fake_logprob(t) for t in sampled.tokens]}
        if body.get("return_token_ids"):
            choice |= {"token_ids": sampled.tokens, "prompt_token_ids": answer.prompt}
        choice["prompt_logprobs"] = prompt_logprobs(answer.prompt, body.get("prompt_logprobs"))
        choices.append(choice)
    return _envelope("text_completion", answer, choices)


def chat(answer: FakeResponse, body: Json) -> Json:
    """POST /v1/chat/completions, with vLLM's additions on request."""
    choices = []
    for i, sampled in enumerate(answer.choices):
        message = {"role": "assistant", "content": sampled.text}
        choice: Json = {"index": i, "finish_reason": sampled.reason, "message": message}
        if body.get("logprobs") and answer.has_logprobs:
            choice["logprobs"] = _token_entries(sampled.tokens)
        if body.get("return_token_ids"):
            choice["token_ids"] = sampled.tokens
        choices.append(choice)
    ids = {"prompt_token_ids": answer.prompt} if body.get("return_token_ids") else {}
    return {**_envelope("chat.completion", answer, choices), **ids}


def _triple(token: int) -> list[Any]:
    return [fake_logprob(token), token, None]


def _token_entries(tokens: Sequence[int]) -> Json:
    entries = [{"token": f"token_id:{t}", "logprob": fake_logprob(t)} for t in tokens]
    return {"content": entries}


def _envelope(kind: str, answer: FakeResponse, choices: list[Json]) -> Json:
    return {
        "id": "fake",
        "object": kind,
        "created": 0,
        "model": "fake",
        "choices": choices,
        "usage": answer.usage,
    }
