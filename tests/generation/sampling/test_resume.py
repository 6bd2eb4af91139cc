from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from atroposlib.errors import InferenceUnavailable, TokensMissing
from atroposlib.generation.sampling import resume
from atroposlib.generation.sampling.generation import Generation, derived_seed, stop_strings
from atroposlib.generation.sampling.resume import (
    cut_at_spanning_stop,
    generate_with_resume,
    join_segments,
    resumed_params,
    spanning_stop_end,
)
from atroposlib.wire.routing import RoutedExperts, experts_entry

PROMPT = [90, 91]
EOS = 0


@pytest.fixture(autouse=True, scope="module")
def without_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume, "INITIAL_PAUSE_S", 0.0)
        yield


class Engine:
    """Continues one text, a token per character, and aborts after given counts.

    Like real engines it matches stop strings only in the text of one request.
    """

    def __init__(self, text: str, aborts: Sequence[int] = ()) -> None:
        self.tokens = [*map(ord, text), EOS]
        self.aborts = list(aborts)
        self.requests: list[tuple[int, dict[str, Any]]] = []  # (tokens given, parameters)
        self.version = 0

    async def ask(self, ids: list[int], params: dict[str, Any]) -> list[Generation]:
        done = len(ids) - len(PROMPT)
        self.requests.append((done, params))
        room = self.aborts.pop(0) if self.aborts else None
        out: list[int] = []
        reason = None
        for token in self.tokens[done:]:
            if len(out) == room:
                reason = "abort"
            elif len(out) == params["max_tokens"]:
                reason = "length"
            if reason:
                break
            out.append(token)
            if token == EOS or any(s in decode(out) for s in stop_strings(params)):
                reason = "stop"
                break
        versions = [self.version] * len(out)
        self.version += 1
        output = Generation(
            prompt_ids=ids,
            tokens=out,
            logprobs=[-float(done + i) for i in range(len(out))],
            versions=versions,
            finish_reason=reason or "length",
        )
        return [output] * params["n"]


def decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


async def decoder() -> Any:
    return decode


async def run(engine: Engine, stall_timeout_s: float = 60, **params: Any) -> list[Generation]:
    asked = {"n": 1, "max_tokens": 99, **params}
    return await generate_with_resume(PROMPT, asked, engine.ask, decoder, stall_timeout_s)


@given(
    text=st.text("ab", max_size=12),
    aborts=st.lists(st.integers(0, 4), max_size=5),
    limit=st.integers(1, 14),
    stop=st.one_of(st.none(), st.text("ab", min_size=1, max_size=4)),
    more=st.text("ab", min_size=1, max_size=4),
)
async def test_a_generation_resumed_after_any_abort_equals_the_uninterrupted_one(
    text: str, aborts: list[int], limit: int, stop: str | None, more: str
) -> None:
    stops: Any = stop if stop is None else [stop, more]
    (whole,) = await run(Engine(text), max_tokens=limit, stop=stops)
    (pieced,) = await run(Engine(text, aborts), max_tokens=limit, stop=stops)
    assert (pieced.tokens, pieced.logprobs) == (whole.tokens, whole.logprobs)
    assert (pieced.prompt_ids, pieced.finish_reason) == (PROMPT, whole.finish_reason)


async def test_every_segment_keeps_the_version_that_sampled_it() -> None:
    (output,) = await run(Engine("abcdef", aborts=[2, 3]))
    assert output.versions == [0, 0, 1, 1, 1, 2, 2]


async def test_each_choice_is_resumed_separately_after_an_abort() -> None:
    engine = Engine("abcdef", aborts=[2])
    outputs = await run(engine, n=3)
    assert [decode(output.tokens[:-1]) for output in outputs] == ["abcdef"] * 3
    assert [params["n"] for _, params in engine.requests] == [3, 1, 1, 1]


async def test_an_abort_at_the_token_limit_has_finish_reason_length() -> None:
    engine = Engine("abcdef", aborts=[3])
    (output,) = await run(engine, max_tokens=3)
    assert (decode(output.tokens), output.finish_reason) == ("abc", "length")
    assert len(engine.requests) == 1


async def test_an_engine_that_only_aborts_raises_after_the_stall_timeout() -> None:
    engine = Engine("abc", aborts=[1] + [0] * 500)
    with pytest.raises(InferenceUnavailable, match="does not hold requests; resume it"):
        await run(engine, stall_timeout_s=0.0)
    assert len(engine.requests) == 2


async def test_tokens_that_do_not_extend_the_given_prefix_are_rejected() -> None:
    engine = Engine("abcd", aborts=[2])

    async def forgets(ids: list[int], params: dict[str, Any]) -> list[Generation]:
        return await engine.ask(PROMPT, params)

    with pytest.raises(TokensMissing, match="tokens other than those sent"):
        await generate_with_resume(PROMPT, {"n": 1, "max_tokens": 9}, forgets, decoder, 1.0)


def test_token_limits_are_reduced_by_the_sampled_tokens() -> None:
    params = {"n": 4, "max_tokens": 10, "min_tokens": 5, "top_p": 0.9, "prompt": "text"}
    assert resumed_params(params, 3, 0) == {
        "n": 1,
        "max_tokens": 7,
        "min_tokens": 2,
        "top_p": 0.9,
    }
    assert resumed_params(params, 8, 0)["min_tokens"] == 0


async def test_every_segment_is_sampled_with_a_different_seed() -> None:
    engine = Engine("abcdef", aborts=[2, 1])
    await run(engine, n=2, seed=5)
    seeds = [params["seed"] for _, params in engine.requests]
    assert seeds[0] == 5 and len(set(seeds)) == len(seeds)
    assert derived_seed(5, 0) == 5 and 0 <= derived_seed(5, 1) < 2**31


@pytest.mark.parametrize(
    ("text", "boundary", "stops", "end"),
    [
        ("abcd", 2, ["bc"], 3),
        ("abcd", 2, ["ab"], None),  # ends with the earlier segment: it would have stopped
        ("abcd", 2, ["cd"], None),  # begins in the new one: the server saw it
        ("abcdef", 3, ["cdef", "bcd"], 4),
        ("aaaa", 2, ["aaa"], 3),
        ("ab", 1, ["x"], None),
    ],
)
def test_only_stop_strings_that_cross_the_segment_boundary_are_matched(
    text: str, boundary: int, stops: list[str], end: int | None
) -> None:
    assert spanning_stop_end(text, boundary, stops) == end


def test_experts_of_an_aborted_segment_stay_and_are_cut_with_the_tokens() -> None:
    def routed(*experts: int) -> RoutedExperts:
        return experts_entry(np.array(experts).reshape(-1, 1, 1))

    first = Generation(
        prompt_ids=[1],
        tokens=[2],
        logprobs=[-1.0],
        versions=[0],
        finish_reason="abort",
        routed_experts=routed(5),
    )
    more = replace(
        first, prompt_ids=[1, 2], tokens=[97, 98, 99], logprobs=[-1.0] * 3, versions=[0] * 3,
        routed_experts=routed(9, 6, 7, 8),
    )  # fmt: skip
    whole = join_segments(first, more)
    assert whole.routed_experts == routed(5, 6, 7, 8)
    cut = cut_at_spanning_stop(whole, 2, {"stop": "ab"}, decode)
    assert (len(cut.tokens), cut.routed_experts) == (3, routed(5, 6, 7, 8))
