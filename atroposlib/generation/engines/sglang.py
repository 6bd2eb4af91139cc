"""SGLang's native /generate: token ids in, ``output_token_logprobs`` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.errors import TokensMissing
from atroposlib.generation.engines.openai import (
    TokenServer,
    expect_outputs,
    logprobs_result,
    take_top_k,
)
from atroposlib.generation.sampling.generation import (
    Generation,
    finish_reason_text,
    request_options,
    sampling_params,
    token_versions,
)
from atroposlib.generation.sampling.reply_form import ReplyPart, expected_form
from atroposlib.wire.routing import experts_of

GENERATE_PATH = "/generate"
SGLANG_NAMES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
}


class SGLangServer(TokenServer):
    """OpenAI's routes for chat and completions, ``/generate`` for token requests."""

    version_path = "/server_info"

    async def _generate_wrapper(self, **kwargs: Any) -> list[Generation]:
        ids = list(kwargs["input_ids"])
        params = sampling_params(kwargs)
        url = f"{self._parts.root_url}{GENERATE_PATH}"
        reply = await self._parts.http.post(
            url, generate_body(ids, params), **request_options(kwargs)
        )
        with expected_form(url):
            outputs = read_generations(ReplyPart(reply.payload, url), ids)
        return expect_outputs(outputs, int(params["n"]), url)

    async def _get_logprobs_wrapper(self, **kwargs: Any) -> dict[str, Any]:
        ids = await self._prompt_ids(kwargs)
        body = logprobs_body(ids, take_top_k(kwargs))
        url = f"{self._parts.root_url}{GENERATE_PATH}"
        reply = await self._parts.http.post(url, body, **request_options(kwargs))
        with expected_form(url):
            return logprobs_result(
                ids, read_prompt_logprobs(ReplyPart(reply.payload, url), ids)
            )


def generate_body(ids: list[int], params: Mapping[str, Any]) -> dict[str, Any]:
    beside = {k: v for k, v in params.items() if k in ("return_routed_experts", "lora_path")}
    return {
        **beside,
        "input_ids": ids,
        "sampling_params": {
            SGLANG_NAMES.get(k, k): v for k, v in params.items() if k not in beside
        },
        "return_logprob": True,
        "return_text_in_logprobs": False,
    }


def logprobs_body(ids: list[int], top_k: int) -> dict[str, Any]:
    """Body that computes only the prompt. ``logprob_start_len`` 0 is its first token."""
    body = generate_body(ids, {"max_tokens": 0, "temperature": 0.0})
    return {**body, "logprob_start_len": 0, "top_logprobs_num": top_k}


def read_generations(reply: ReplyPart, ids: list[int]) -> list[Generation]:
    """Outputs of a payload: an object, or a list of objects. Raises TokensMissing."""
    outputs = reply.parts() if isinstance(reply.value, list) else [reply]
    return [_generation(output.field("meta_info").require(), ids) for output in outputs]


def _generation(meta: ReplyPart, ids: list[int]) -> Generation:
    triples = meta.field("output_token_logprobs")
    if meta.field("completion_tokens").value != 0:
        triples.require()
    tokens, logprobs = _columns(triples)
    spans, routed = meta.field("weight_versions"), meta.field("routed_experts").value
    with spans.reading("a list of spans"):
        label = meta.field("weight_version").value
        versions = token_versions(len(tokens), spans.value, label)
    return Generation(
        prompt_ids=ids,
        tokens=tokens,
        logprobs=logprobs,
        versions=versions,
        finish_reason=finish_reason_text(meta.field("finish_reason").value),
        routed_experts=routed and experts_of(routed, len(ids) + len(tokens)),
    )


def _columns(triples: ReplyPart) -> tuple[list[int], list[float]]:
    """Token ids and logprobs (T,) of [logprob, token id, ...] at each position."""
    with triples.reading("a list of [logprob, token id, ...]"):
        rows = triples.value or []
        tokens = [token for _, token, *_ in rows]
        logprobs = [logprob for logprob, *_ in rows]
    named = f"{triples.name} (token ids)"
    ids = ReplyPart(tokens, triples.where, named).token_ids()
    return ids, ReplyPart(logprobs, triples.where, triples.name).numbers()


def read_prompt_logprobs(reply: ReplyPart, ids: Sequence[int]) -> list[dict[int, float]]:
    """Logprobs per position: its own token first, then the most likely tokens.

    Nothing predicts the token at position 0, so its dict is empty.
    """
    output = reply.parts()[0] if isinstance(reply.value, list) and reply.value else reply
    meta = output.field("meta_info").require()
    own = meta.field("input_token_logprobs").require()
    tops = meta.field("input_top_logprobs")
    with own.reading("a list of [logprob, token id, ...]"):
        sent = [int(token) for _, token, *_ in own.entries()]
    if sent != list(ids):
        raise TokensMissing(f"{own.where}: logprobs of tokens other than those sent")
    rows: list[dict[int, float]] = []
    alternatives_of = tops.entries() if tops.value else [None] * len(sent)
    with tops.reading("a list of lists of [logprob, token id, ...]"):
        for triple, alternatives in zip(own.entries(), alternatives_of):
            entries = [] if triple[0] is None else [triple, *(alternatives or [])]
            row: dict[int, float] = {}
            for logprob, token, *_ in entries:
                row.setdefault(int(token), float(logprob))
            rows.append(row)
    return rows
