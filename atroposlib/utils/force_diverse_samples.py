"""Diverse groups: distinct first tokens, then a continuation of each.

prompt + prefill -> 20 likeliest first tokens -> n tokens, drawn without replacement
                 -> a continuation each, all at once
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.errors import ConfigError, TokensMissing
from atroposlib.utils.gathering import gather_or_cancel

logger = logging.getLogger(__name__)

TOP_LOGPROBS = 20  # default maximum of inference servers
# The first token is forced; the continuation stays among likely tokens.
CONTINUATION_TOP_P = 0.3
# Not OpenAI's: sent as extra_body.
CONTINUATION_ONLY_LOCAL = {"min_p": 0.5, "repetition_penalty": 1.05}


async def generate_with_diverse_first_tokens(
    self: Any,
    messages: Sequence[Mapping[str, Any]],
    prefill: str = "",
    n: int = 8,
    max_tokens: int = 4096,
    temperature: float = 1.0,
) -> list[str]:
    """Up to ``n`` answers with distinct first tokens, likelier tokens drawn more often.

    Args:
        self: an environment; its ``server`` gives completions, its ``tokenizer`` has the
            chat template.
        prefill: beginning of every answer; not part of the returned texts.
        max_tokens: limit of an answer, its first token included.

    Raises:
        ConfigError: n, max_tokens or temperature is not above 0.
        TokensMissing: the server returns no logprobs of likely first tokens.
    """
    for name, value in {"n": n, "max_tokens": max_tokens, "temperature": temperature}.items():
        if value <= 0:
            raise ConfigError(f"{name}: {value} given; it has to be above 0")
    chat = [dict(message) for message in messages]
    options = {"tokenize": False, "add_generation_prompt": True}
    prompt = str(self.tokenizer.apply_chat_template(chat, **options)) + prefill
    likely = await _likely_first_tokens(self.server, prompt)
    firsts = draw_distinct(likely, n, temperature, random.Random())
    if len(firsts) < n:
        logger.warning("the server named %d first tokens; %d wanted", len(firsts), n)
    ends = getattr(self.tokenizer, "eos_token", None)

    async def finish(first: str) -> str:
        if first == ends:
            return ""  # an answer that ends before it begins
        if max_tokens == 1:
            return first
        completion = await self.server.completion(
            prompt=prompt + first,
            n=1,
            max_tokens=max_tokens - 1,
            temperature=temperature,
            top_p=CONTINUATION_TOP_P,
            extra_body=dict(CONTINUATION_ONLY_LOCAL),
        )
        return first + str(completion.choices[0].text)

    return await gather_or_cancel(map(finish, firsts))


async def _likely_first_tokens(server: Any, prompt: str) -> dict[str, float]:
    completion = await server.completion(
        prompt=prompt, n=1, max_tokens=1, temperature=1.0, logprobs=TOP_LOGPROBS
    )
    logprobs = completion.choices[0].logprobs
    tops = logprobs.top_logprobs if logprobs is not None else None
    if not tops or not tops[0]:
        raise TokensMissing(
            "the server names no likely first tokens; its completions need logprobs="
            f"{TOP_LOGPROBS} (vLLM: --max-logprobs)"
        )
    return dict(tops[0])


def draw_distinct(
    logprobs: Mapping[str, float], n: int, temperature: float, rng: random.Random
) -> list[str]:
    """At most ``n`` keys, drawn without replacement with probability exp(logprob / T).

    Sorting by logprob / T + Gumbel noise is that draw (Gumbel top-k), without renormalising.
    """

    def noisy(token: str) -> float:
        # The draw may be 0.0, which has no logarithm; the smallest float replaces it.
        return logprobs[token] / temperature - math.log(rng.expovariate(1.0) or 5e-324)

    keys = {token: noisy(token) for token in logprobs}
    return sorted(keys, key=keys.__getitem__, reverse=True)[:n]
