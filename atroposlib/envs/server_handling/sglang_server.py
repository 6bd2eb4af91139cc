"""SGLang's native /generate: token ids in, ``output_token_logprobs`` out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atroposlib.envs.server_handling.generation import (
    Generation,
    finish_reason_text,
    token_versions,
)
from atroposlib.envs.server_handling.sampling import sampling_params
from atroposlib.envs.server_handling.token_server import TokenServer, expect_outputs
from atroposlib.envs.server_handling.vllm_routes import require

GENERATE_PATH = "/generate"
SGLANG_NAMES = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}


class SGLangServer(TokenServer):
    """Chat and completions go the OpenAI way; token requests to ``/generate``."""

    async def _generate_wrapper(self, **kwargs: Any) -> list[Generation]:
        ids = list(kwargs["input_ids"])
        params = sampling_params(kwargs)
        url = f"{self.root_url}{GENERATE_PATH}"
        reply = await self.http.post(url, generate_body(ids, params))
        return expect_outputs(read_generations(reply.payload, ids), int(params["n"]), url)


def generate_body(ids: list[int], params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "input_ids": ids,
        "sampling_params": {SGLANG_NAMES.get(k, k): v for k, v in params.items()},
        "return_logprob": True,
        "return_text_in_logprobs": False,
    }


def read_generations(payload: Any, ids: list[int]) -> list[Generation]:
    """One output is an object, several are a list of them."""
    outputs = payload if isinstance(payload, list) else [payload]
    generations = []
    for output in outputs:
        meta = require(output.get("meta_info"), "meta_info", GENERATE_PATH)
        triples = meta.get("output_token_logprobs")
        if meta.get("completion_tokens") != 0:
            triples = require(triples, "output_token_logprobs", GENERATE_PATH)
        tokens = [int(token) for _, token, *_ in triples or []]
        generations.append(
            Generation(
                prompt_ids=ids,
                tokens=tokens,
                logprobs=[float(logprob) for logprob, *_ in triples or []],
                versions=token_versions(
                    len(tokens), meta.get("weight_versions"), meta.get("weight_version")
                ),
                finish_reason=finish_reason_text(meta.get("finish_reason")),
            )
        )
    return generations
