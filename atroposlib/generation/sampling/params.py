"""Keyword arguments of a token request: which prompt, and which sampling parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.generation.sampling.types import DEFAULT_MAX_TOKENS

_NOT_SAMPLING = frozenset(
    {"model", "prompt", "input_ids", "messages", "split", "stream", "extra_body"}
    | {"extra_headers", "extra_query", "timeout", "max_new_tokens", "max_completion_tokens"}
    | {"logprobs", "top_logprobs", "skip_reasoning"}
)

# Sent unless the caller says otherwise: a model's own generation_config.json would truncate
# the distribution, and the logprobs would no longer be those of what is trained.
UNTRUNCATED = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}

SEED_BITS = 31  # what every engine takes


def sampling_params(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters by vLLM's names, with explicit defaults.

    ``max_new_tokens`` and ``max_completion_tokens`` mean ``max_tokens``; ``extra_body`` is
    merged in.
    """
    params = {k: v for k, v in kwargs.items() if k not in _NOT_SAMPLING and v is not None}
    params.update(kwargs.get("extra_body") or {})
    defaults = {"n": 1, "max_tokens": DEFAULT_MAX_TOKENS, **UNTRUNCATED}
    return {**defaults, **params, **_given_limit(kwargs)}


def with_max_tokens(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """``kwargs`` with the limit under the one name ``max_tokens``."""
    renamed = {k: v for k, v in kwargs.items() if k not in _LIMIT_NAMES}
    return {"max_tokens": DEFAULT_MAX_TOKENS, **renamed, **_given_limit(kwargs)}


_LIMIT_NAMES = ("max_tokens", "max_new_tokens", "max_completion_tokens")  # the last one wins


def _given_limit(kwargs: Mapping[str, Any]) -> dict[str, int]:
    given = [kwargs[name] for name in _LIMIT_NAMES if kwargs.get(name) is not None]
    return {"max_tokens": int(given[-1])} if given else {}


def stop_strings(params: Mapping[str, Any]) -> list[str]:
    """``stop`` is one string or several; empty ones stop nothing."""
    stop = params.get("stop")
    given = [stop] if isinstance(stop, str) else list(stop or ())
    return [one for one in given if one]


def derived_seed(seed: int, choice: int, done: int = 0) -> int:
    """The seed of one choice after ``done`` tokens; (0, 0) keeps the caller's.

    Requests that share a seed draw the same numbers: n of them would be one sample n times,
    and a resumed segment would repeat the draws of the one before.
    """
    if choice == 0 and done == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{choice}:{done}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (1 << SEED_BITS)


def with_choice_seed(kwargs: Mapping[str, Any], choice: int) -> dict[str, Any]:
    """``kwargs`` of the part of a split request that begins at ``choice``."""
    seed = kwargs.get("seed")
    return dict(kwargs) if seed is None else {**kwargs, "seed": derived_seed(seed, choice)}


def request_options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What the caller says about the request itself: ``headers`` and ``timeout_s``."""
    return {"headers": kwargs.get("extra_headers"), "timeout_s": kwargs.get("timeout")}


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
