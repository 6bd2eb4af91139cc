"""Keyword arguments of a token request: which prompt, and which sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atroposlib.envs.server_handling.generation import DEFAULT_MAX_TOKENS
from atroposlib.errors import ConfigError

_NOT_SAMPLING = frozenset(
    {"model", "prompt", "input_ids", "messages", "split", "stream", "extra_body"}
    | {"extra_headers", "extra_query", "timeout", "max_new_tokens", "max_completion_tokens"}
    | {"logprobs", "top_logprobs", "skip_reasoning"}
)

# Sent unless the caller says otherwise: a model's own generation_config.json would truncate
# the distribution, and the logprobs would no longer be those of what is trained.
UNTRUNCATED = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}


def sampling_params(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters by vLLM's names, with explicit defaults.

    ``max_new_tokens`` and ``max_completion_tokens`` mean ``max_tokens``; ``extra_body`` is
    merged in.
    """
    params = {k: v for k, v in kwargs.items() if k not in _NOT_SAMPLING and v is not None}
    params.update(kwargs.get("extra_body") or {})
    for other_name in ("max_new_tokens", "max_completion_tokens"):
        if kwargs.get(other_name) is not None:
            params["max_tokens"] = kwargs[other_name]
    return {"n": 1, "max_tokens": DEFAULT_MAX_TOKENS, **UNTRUNCATED, **params}


def prompt_ids(kwargs: Mapping[str, Any], tokenizer: Any) -> list[int]:
    """``input_ids`` as they are, else ``prompt`` encoded; a doubled BOS is made single.

    A rendered chat template brings its own BOS and encoding adds another: the model never
    saw two in training.
    """
    if kwargs.get("input_ids") is not None:
        ids = list(kwargs["input_ids"])
    elif kwargs.get("prompt") is not None:
        ids = list(tokenizer.encode(kwargs["prompt"]))
    else:
        raise ConfigError("a token request needs input_ids or prompt")
    return without_doubled_bos(ids, tokenizer.bos_token_id if tokenizer is not None else None)


def without_doubled_bos(ids: list[int], bos: int | None) -> list[int]:
    if bos is not None and ids[:2] == [bos, bos]:
        return ids[1:]
    return ids
