"""Token requests and results: sampling parameters, sampled tokens, policy versions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError, TokensMissing
from atroposlib.wire.messages import NEUTRAL_PENALTIES, NEUTRAL_SAMPLING, cuts_in_force

if TYPE_CHECKING:
    from atroposlib.wire import LogprobKind
    from atroposlib.wire.routing import RoutedExperts

# The server reported no version of the token. The wire uses the same number at masked
# positions, so the versions of a row with it on a trained token are not sent.
UNKNOWN_VERSION = -1

# Engines default to 16 new tokens, which silently truncates nearly every reply.
DEFAULT_MAX_TOKENS = 1024


# (prompt ids, [tokens], [logprobs], [finish reason]) of n outputs: the original's shape.
FourTuple = tuple[list[int], list[list[int]], list[list[float]], list[Any]]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A sampled continuation of ``prompt_ids`` (P tokens) by ``tokens`` (T tokens).

    Example: prompt_ids [1, 5], tokens [9, 2], logprobs [-0.2, -0.9], versions [3, 3],
    finish_reason "stop".
    """

    prompt_ids: list[int]  # (P,) exactly as sent to the server
    tokens: list[int]  # (T,) with the end token where sampled
    logprobs: list[float]  # (T,) log p of each token under the sampler
    versions: list[int]  # (T,) policy version, or UNKNOWN_VERSION
    finish_reason: str  # stop, length, abort
    logprob_kind: LogprobKind | None = None  # None: the server does not report it
    sampling: Mapping[str, Any] | None = None  # see ``span_sampling``; None: unknown
    routed_experts: RoutedExperts | None = None  # experts of the first of these P + T tokens
    images: Sequence[str] = ()  # data URLs in the prompt, whose placeholders are in prompt_ids
    seal: str | None = None  # proof of its session, see ``atroposlib.certificate``

    def __post_init__(self) -> None:
        counts = (len(self.tokens), len(self.logprobs), len(self.versions))
        if len(set(counts)) != 1:
            raise TokensMissing(
                f"{counts[0]} tokens came with {counts[1]} logprobs and {counts[2]} versions; "
                "a row with gaps cannot be trained on"
            )


def four_tuple(outputs: Sequence[Generation]) -> FourTuple:
    return (
        list(outputs[0].prompt_ids) if outputs else [],
        [list(output.tokens) for output in outputs],
        [list(output.logprobs) for output in outputs],
        [output.finish_reason for output in outputs],
    )


def from_four_tuple(
    prompt_ids: Sequence[int],
    tokens: Sequence[Sequence[int]],
    logprobs: Sequence[Sequence[float]],
    finish_reasons: Sequence[Any],
) -> list[Generation]:
    """Generations from the original's shape, with unknown versions. Raises TokensMissing."""
    if not len(tokens) == len(logprobs) == len(finish_reasons):
        raise TokensMissing(
            f"{len(tokens)} outputs came with {len(logprobs)} rows of logprobs "
            f"and {len(finish_reasons)} finish reasons"
        )
    return [
        Generation(
            prompt_ids=list(prompt_ids),
            tokens=list(row),
            logprobs=list(logprobs[i]),
            versions=[UNKNOWN_VERSION] * len(row),
            finish_reason=finish_reason_text(finish_reasons[i]),
        )
        for i, row in enumerate(tokens)
    ]


def finish_reason_text(reason: Any) -> str:
    """Finish reason as a word. SGLang returns {"type": "length", "length": 16}."""
    if isinstance(reason, Mapping):
        reason = reason.get("type")
    return str(reason) if reason else "stop"


def token_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """``usage`` of OpenAI's completions."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def version_number(label: Any) -> int:
    """Number of a weight label: 3 and "3" are 3, null and "base" are UNKNOWN_VERSION."""
    text = str(label)
    known = text.isascii() and text.isdecimal() and len(text) <= 18
    return int(text) if known else UNKNOWN_VERSION


def token_versions(num_tokens: int, spans: Any, label: Any) -> list[int]:
    """Version of each of T tokens, from ``[{"version": 3, "start": 0, "end": 6}, ...]``.

    Tokens in no span get ``label``, the version reported for the response as a whole.
    """
    versions = [version_number(label)] * num_tokens
    for span in spans or []:
        start, end = max(0, int(span["start"])), min(num_tokens, int(span["end"]))
        versions[start:end] = [version_number(span["version"])] * max(0, end - start)
    return versions


def went_back(reported: int, newest: int, announced: int | None) -> bool:
    """Whether a server restarted with older weights than it had and than are published.

    Its trainer gives it the current weights; until then its tokens are stale. A server whose
    version never changes, for example a judge's, is not concerned.

    Args:
        reported: version of the last answer, or UNKNOWN_VERSION.
        newest: version that the server reported before.
    """
    return announced is not None and reported < newest and reported < announced


def with_version(output: Generation, version: int | None) -> Generation:
    """``output`` with ``version`` on the tokens for which the server reported none.

    ``version`` is the announced version from before the request. If weights change during the
    request it is too old and not too new, so staleness is never understated.
    """
    if version is None or UNKNOWN_VERSION not in output.versions:
        return output
    known = [version if v == UNKNOWN_VERSION else v for v in output.versions]
    return replace(output, versions=known)


_NOT_SAMPLING = frozenset(
    {"model", "prompt", "input_ids", "messages", "split", "stream", "extra_body"}
    | {"extra_headers", "extra_query", "timeout", "max_new_tokens", "max_completion_tokens"}
    | {"logprobs", "top_logprobs", "skip_reasoning"}
)

# Sent unless set by the caller: an engine takes absent parameters from the
# generation_config.json of its model, and a truncated or penalised distribution is not the
# distribution of the trained policy.
NEUTRAL = NEUTRAL_SAMPLING
# Parameters of vLLM and SGLang that forbid or prefer tokens in further ways.
CONSTRAINTS = frozenset(
    {"allowed_token_ids", "bad_words", "custom_logit_processor", "ebnf", "json_schema"}
    | {"guided_choice", "guided_grammar", "guided_json", "guided_regex", "guided_decoding"}
    | {"logit_bias", "logits_processors", "min_new_tokens", "min_tokens", "regex"}
    | {"no_repeat_ngram_size", "response_format", "structural_tag", "structured_outputs"}
    | {"typical_p", "xtc_probability", "dry_multiplier", "thinking_token_budget"}
)
# Values of constraints that are not in force.
FREE: tuple[Any, ...] = (None, 0, "", [], (), {}, {"type": "text"})


def span_sampling(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters of a request with the names of a ``wire.SampledSpan``.

    Example: {"temperature": 0.7, "top_p": 0.95}; parameters that change nothing are left out.
    """
    params = sampling_params(kwargs)
    span: dict[str, Any] = {"temperature": float(params["temperature"])}
    span.update(cuts_in_force(params))
    for name, neutral in NEUTRAL_PENALTIES.items():
        if (penalty := float(params[name])) != neutral:
            span[name] = penalty
    if names := sorted(name for name in CONSTRAINTS if params.get(name) not in FREE):
        span["constraints"] = names
    return span


SEED_BITS = 31  # the range that every engine accepts


def sampling_params(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters under vLLM's names, with explicit defaults.

    ``max_new_tokens`` and ``max_completion_tokens`` become ``max_tokens``, and ``extra_body``
    is merged in.
    """
    params = {k: v for k, v in kwargs.items() if k not in _NOT_SAMPLING and v is not None}
    more = kwargs.get("extra_body") or {}
    params.update({k: v for k, v in more.items() if v is not None or k not in NEUTRAL})
    defaults = {"n": 1, "max_tokens": DEFAULT_MAX_TOKENS, **NEUTRAL}
    return {**defaults, **params, **_given_limit(kwargs)}


def with_configured(kwargs: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """``kwargs`` with ``sampling`` or ``eval_sampling`` of a server's config where they give none.

    A configured ``max_tokens`` bounds the given limit.
    """
    is_train = (kwargs.get("split") or "train") == "train"
    # Configs of the original and of tests lack these fields.
    usual = vars(config).get("sampling" if is_train else "eval_sampling")
    if not usual:
        return dict(kwargs)
    merged = {**usual, **{k: v for k, v in kwargs.items() if v is not None}}
    if "max_tokens" not in usual:
        return merged
    limit = min(int(usual["max_tokens"]), _given_limit(merged)["max_tokens"])
    rest = {k: v for k, v in merged.items() if k not in _LIMIT_NAMES}
    return {**rest, "max_tokens": limit}


def with_max_tokens(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """``kwargs`` with the limit of new tokens as ``max_tokens`` only."""
    renamed = {k: v for k, v in kwargs.items() if k not in _LIMIT_NAMES}
    return {"max_tokens": DEFAULT_MAX_TOKENS, **renamed, **_given_limit(kwargs)}


_LIMIT_NAMES = ("max_tokens", "max_new_tokens", "max_completion_tokens")  # the last name wins


def _given_limit(kwargs: Mapping[str, Any]) -> dict[str, int]:
    limits = [kwargs[name] for name in _LIMIT_NAMES if kwargs.get(name) is not None]
    return {"max_tokens": int(limits[-1])} if limits else {}


def stop_strings(params: Mapping[str, Any]) -> list[str]:
    """The stop strings of ``stop``, a string or a list; empty strings are left out."""
    return [stop for stop in _stops(params) if isinstance(stop, str) and stop]


def with_stop_ids(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """``kwargs`` with the token ids in ``stop`` as ``stop_token_ids``."""
    ids = [stop for stop in _stops(kwargs) if isinstance(stop, int)]
    if not ids:
        return dict(kwargs)
    known = [*(kwargs.get("stop_token_ids") or ()), *ids]
    return {**kwargs, "stop": stop_strings(kwargs) or None, "stop_token_ids": known}


def _stops(params: Mapping[str, Any]) -> list[Any]:
    stop = params.get("stop")
    return [stop] if isinstance(stop, (str, int)) else list(stop or ())


def derived_seed(seed: int, choice: int, done: int = 0) -> int:
    """Seed of a choice after ``done`` tokens; the caller's seed for (0, 0).

    Requests with the same seed draw the same random numbers: n requests would return the same
    sample n times, and a resumed segment would repeat the earlier draws.
    """
    if choice == 0 and done == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{choice}:{done}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (1 << SEED_BITS)


def with_choice_seed(kwargs: Mapping[str, Any], choice: int) -> dict[str, Any]:
    """``kwargs`` of the part of a split request whose first choice is ``choice``."""
    seed = kwargs.get("seed")
    return dict(kwargs) if seed is None else {**kwargs, "seed": derived_seed(seed, choice)}


def request_options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the HTTP request: ``headers`` and ``timeout_s``."""
    return {"headers": kwargs.get("extra_headers"), "timeout_s": kwargs.get("timeout")}


def prompt_ids(kwargs: Mapping[str, Any], tokenizer: Any) -> list[int]:
    """``input_ids``, else ``prompt`` encoded; a second leading BOS is removed.

    A rendered chat template contains a BOS, and encoding adds a second; training data has one.
    """
    if kwargs.get("input_ids") is not None:
        ids = list(kwargs["input_ids"])
    elif kwargs.get("prompt") is not None:
        ids = list(tokenizer.encode(kwargs["prompt"]))
    else:
        raise ConfigError("a token request needs input_ids or prompt")
    return without_doubled_bos(ids, tokenizer.bos_token_id if tokenizer is not None else None)


def without_doubled_bos(ids: list[int], bos: int | None) -> list[int]:
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids
