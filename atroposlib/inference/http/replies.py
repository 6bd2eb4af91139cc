"""Bodies of replies, built as plain dictionaries from finished outputs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from starlette.responses import Response

from atroposlib.inference.engine.sequence import Output

Json = dict[str, Any]


class JsonResponse(Response):
    """JSON by msgspec: a batch of sequences is 10^5 numbers, a slow encoder would show."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


class Detokenizer:
    """Texts of whole outputs and of single tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.token = lru_cache(maxsize=65_536)(self._token)

    def texts(self, outputs: list[Output]) -> list[str]:
        """One text per output, special tokens left out, cut before a stop string."""
        texts: list[str] = self._tokenizer.batch_decode(
            [output.tokens for output in outputs], skip_special_tokens=True
        )
        return [
            text if output.stop_text is None else output.stop_text
            for text, output in zip(texts, outputs)
        ]

    def _token(self, token: int) -> str:
        text: str = self._tokenizer.decode([token])
        return text


def usage(num_prompt_tokens: int, outputs: list[Output]) -> Json:
    completion = sum(len(output.tokens) for output in outputs)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": num_prompt_tokens + completion,
    }


def version_spans(output: Output) -> list[Json]:
    return [{"version": s.version, "start": s.start, "end": s.end} for s in output.versions]


def chat_logprobs(
    tokens: list[int], logprobs: list[float], top: list[dict[int, float]], names: Detokenizer
) -> Json:
    """The ``logprobs`` of a chat choice: one entry per token with its alternatives."""
    content = []
    for i, (token, logprob) in enumerate(zip(tokens, logprobs)):
        alternatives = top[i] if top else {}
        entry = _token_entry(token, logprob, names)
        entry["top_logprobs"] = [_token_entry(t, v, names) for t, v in alternatives.items()]
        content.append(entry)
    return {"content": content, "refusal": None}


def _token_entry(token: int, logprob: float, names: Detokenizer) -> Json:
    text = names.token(token)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def completion_logprobs(
    tokens: list[int],
    logprobs: list[float],
    top: list[dict[int, float]],
    names: Detokenizer,
    offset: int = 0,
) -> Json:
    """The ``logprobs`` of a completion choice: parallel lists."""
    texts = [names.token(token) for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    alternatives = [{names.token(t): v for t, v in entry.items()} for entry in top]
    return {
        "tokens": texts,
        "token_logprobs": logprobs,
        "top_logprobs": alternatives or None,
        "text_offset": offsets,
    }


def generate_logprobs(output: Output, top: int) -> list[list[dict[int, float]]]:
    """/generate: per token one dictionary, the sampled token first."""
    rows: list[list[dict[int, float]]] = []
    for i, (token, logprob) in enumerate(zip(output.tokens, output.logprobs)):
        others = output.top[i].items() if top and output.top else ()
        rows.append([{token: logprob} | {t: v for t, v in others if t != token}])
    return rows
