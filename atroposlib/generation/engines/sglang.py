"""SGLang's native /generate: token ids in, ``output_token_logprobs`` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.errors import TokensMissing
from atroposlib.generation.engines.openai import (
    TokenServer,
    expect_outputs,
    expected_form,
    logprobs_result,
    require_field,
    take_top_k,
)
from atroposlib.generation.sampling.generation import (
    Generation,
    finish_reason_text,
    request_options,
    sampling_params,
    token_versions,
)
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
        return expect_outputs(read_generations(reply.payload, ids), int(params["n"]), url)

    async def _get_logprobs_wrapper(self, **kwargs: Any) -> dict[str, Any]:
        ids = await self._prompt_ids(kwargs)
        body = logprobs_body(ids, take_top_k(kwargs))
        url = f"{self._parts.root_url}{GENERATE_PATH}"
        reply = await self._parts.http.post(url, body, **request_options(kwargs))
        with expected_form(url):
            return logprobs_result(ids, read_prompt_logprobs(reply.payload, ids))


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


def read_generations(payload: Any, ids: list[int]) -> list[Generation]:
    """Outputs of a payload: an object, or a list of objects. Raises TokensMissing."""
    outputs = payload if isinstance(payload, list) else [payload]
    generations = []
    for output in outputs:
        meta = require_field(output.get("meta_info"), "meta_info", GENERATE_PATH)
        triples = meta.get("output_token_logprobs")
        if meta.get("completion_tokens") != 0:
            triples = require_field(triples, "output_token_logprobs", GENERATE_PATH)
        tokens = [int(token) for _, token, *_ in triples or []]
        routed = meta.get("routed_experts")
        generations.append(
            Generation(
                prompt_ids=ids,
                tokens=tokens,
                logprobs=[float(logprob) for logprob, *_ in triples or []],
                versions=token_versions(
                    len(tokens), meta.get("weight_versions"), meta.get("weight_version")
                ),
                finish_reason=finish_reason_text(meta.get("finish_reason")),
                routed_experts=routed and experts_of(routed, len(ids) + len(tokens)),
            )
        )
    return generations


def read_prompt_logprobs(payload: Any, ids: Sequence[int]) -> list[dict[int, float]]:
    """Logprobs per position: its own token first, then the most likely tokens.

    Nothing predicts the token at position 0, so its dict is empty.
    """
    output = payload[0] if isinstance(payload, list) else payload
    meta = require_field(output.get("meta_info"), "meta_info", GENERATE_PATH)
    own = require_field(
        meta.get("input_token_logprobs"), "input_token_logprobs", GENERATE_PATH
    )
    if [int(token) for _, token, *_ in own] != list(ids):
        raise TokensMissing(f"{GENERATE_PATH}: logprobs of tokens other than those sent")
    tops = meta.get("input_top_logprobs") or [None] * len(own)
    rows: list[dict[int, float]] = []
    for triple, alternatives in zip(own, tops):
        entries = [] if triple[0] is None else [triple, *(alternatives or [])]
        row: dict[int, float] = {}
        for logprob, token, *_ in entries:
            row.setdefault(int(token), float(logprob))
        rows.append(row)
    return rows
