"""Resumption of aborted generations: a continuation out of several segments.

    ask(prompt, 10 tokens)             -> 4 tokens, "abort": the engine paused for new weights
    ask(prompt + 4 tokens, 6 tokens)   -> 6 tokens, "length"

Frequency and presence penalties count from the start of a segment, because engines count
generated tokens and not prompt tokens. No request field changes that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from atroposlib.errors import InferenceUnavailable, TokensMissing
from atroposlib.generation.sampling.generation import Generation, derived_seed, stop_strings
from atroposlib.utils.gathering import gather_or_cancel
from atroposlib.wire.routing import join_experts

INITIAL_PAUSE_S = 0.1
MAX_PAUSE_S = 5.0

Params = dict[str, Any]
Ask = Callable[[list[int], Params], Awaitable[list[Generation]]]
Decode = Callable[[Sequence[int]], str]
Decoder = Callable[[], Awaitable[Decode]]


async def generate_with_resume(
    input_ids: Sequence[int],
    params: Params,
    ask: Ask,
    decoder: Decoder,
    stall_timeout_s: float,
) -> list[Generation]:
    """``params["n"]`` continuations of ``input_ids`` (P,), none with reason "abort".

    They start as a single request and are resumed separately, because each was aborted after a
    different number of tokens. Raises InferenceUnavailable without a new token within
    ``stall_timeout_s`` seconds of aborts.

    Args:
        params: sampling parameters with ``n`` and ``max_tokens``.
        ask: sends a request. Its outputs may have the finish reason "abort".
        decoder: returns the decoder of tokens; called only for stop strings.
    """
    outputs = await ask(list(input_ids), params)
    return await gather_or_cancel(
        _finish(output, i, params, ask, decoder, stall_timeout_s)
        for i, output in enumerate(outputs)
    )


async def _finish(
    output: Generation,
    index: int,
    params: Params,
    ask: Ask,
    decoder: Decoder,
    stall_timeout_s: float,
) -> Generation:
    stops = stop_strings(params)
    last_token_at, pause_s = time.monotonic(), INITIAL_PAUSE_S
    while output.finish_reason == "abort":
        done = len(output.tokens)
        if done >= int(params["max_tokens"]):
            return replace(output, finish_reason="length")
        (more,) = await ask(
            output.prompt_ids + output.tokens, resumed_params(params, done, index)
        )
        if more.tokens or more.finish_reason != "abort":
            output = join_segments(output, more)
            if stops and done:
                output = cut_at_spanning_stop(output, done, params, await decoder())
            last_token_at, pause_s = time.monotonic(), INITIAL_PAUSE_S
            continue
        stalled_s = time.monotonic() - last_token_at
        if stalled_s >= stall_timeout_s:
            raise InferenceUnavailable(
                f"aborted before the first token for {stalled_s:.0f} s: the server is paused "
                "and does not hold requests; resume it"
            )
        await asyncio.sleep(pause_s)
        pause_s = min(MAX_PAUSE_S, 2 * pause_s)
    return output


def resumed_params(params: Mapping[str, Any], done: int, index: int) -> Params:
    """Parameters of the request that continues choice ``index`` after ``done`` tokens.

    Token limits are reduced by ``done``. Each segment has its own seed, because the same seed
    would draw the same numbers again. ``prompt`` is removed: it is not the text of the ids.
    """
    left = {k: v for k, v in params.items() if k != "prompt"}
    left.update(n=1, max_tokens=int(params["max_tokens"]) - done)
    for name in ("min_tokens", "min_new_tokens"):
        if params.get(name):
            left[name] = max(0, int(params[name]) - done)
    if params.get("seed") is not None:
        left["seed"] = derived_seed(int(params["seed"]), index, done)
    return left


def join_segments(output: Generation, more: Generation) -> Generation:
    """Both segments as a single output. Raises TokensMissing if ``more`` continues other tokens."""
    if more.prompt_ids != output.prompt_ids + output.tokens:
        raise TokensMissing("the server continued tokens other than those sent")
    return replace(
        output,
        tokens=output.tokens + more.tokens,
        logprobs=output.logprobs + more.logprobs,
        versions=output.versions + more.versions,
        routed_experts=join_experts((0, output.routed_experts), (0, more.routed_experts)),
        finish_reason=more.finish_reason,
    )


def cut_at_spanning_stop(
    output: Generation, boundary: int, params: Mapping[str, Any], decode: Decode
) -> Generation:
    """``output`` cut at a stop string that spans token ``boundary``, or uncut.

    A server searches only the text of the current segment for stop strings, and would miss a
    stop string that begins in the ``boundary`` tokens of earlier segments.
    """
    text = decode(output.tokens)
    end = spanning_stop_end(text, len(decode(output.tokens[:boundary])), stop_strings(params))
    if end is None:
        return output
    for count in range(boundary + 1, len(output.tokens) + 1):
        if decode(output.tokens[:count])[:end] == text[:end]:
            break
    if count <= int(params.get("min_tokens") or 0):
        return output
    return replace(
        output,
        tokens=output.tokens[:count],
        logprobs=output.logprobs[:count],
        versions=output.versions[:count],
        routed_experts=join_experts(
            (0, output.routed_experts), end=len(output.prompt_ids) + count
        ),
        finish_reason="stop",
    )


def spanning_stop_end(text: str, boundary: int, stops: Sequence[str]) -> int | None:
    """End of the first stop string that spans character ``boundary``, or None."""
    ends = [
        start + len(stop)
        for stop in stops
        for start in range(max(0, boundary - len(stop) + 1), boundary)
        if text.startswith(stop, start)
    ]
    return min(ends, default=None)
