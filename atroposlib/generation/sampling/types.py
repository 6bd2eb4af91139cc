"""What a token backend returns: sampled tokens with their logprobs and policy versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atroposlib.errors import TokensMissing

# The server did not say which weights sampled the token. The wire uses the same number at
# masked positions, so a row with it on a trained token has no versions worth sending.
UNKNOWN_VERSION = -1

# Engines default to 16 new tokens, which truncates nearly everything without a word.
DEFAULT_MAX_TOKENS = 1024


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One sampled continuation of ``prompt_ids`` (P tokens) by ``tokens`` (T tokens).

    Example: prompt_ids [1, 5], tokens [9, 2], logprobs [-0.2, -0.9], versions [3, 3],
    finish_reason "stop".
    """

    prompt_ids: list[int]  # (P,) exactly what the server was given
    tokens: list[int]  # (T,) the end token included where one was sampled
    logprobs: list[float]  # (T,) log p of each token under the sampler
    versions: list[int]  # (T,) policy version, or UNKNOWN_VERSION
    finish_reason: str  # stop, length, abort

    def __post_init__(self) -> None:
        counts = (len(self.tokens), len(self.logprobs), len(self.versions))
        if len(set(counts)) != 1:
            raise TokensMissing(
                f"{counts[0]} tokens came with {counts[1]} logprobs and {counts[2]} versions; "
                "a row with gaps cannot be trained on"
            )


def four_tuple(
    outputs: Sequence[Generation],
) -> tuple[list[int], list[list[int]], list[list[float]], list[str]]:
    """``(prompt ids, tokens, logprobs, finish reasons)``, the original's shape."""
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
    """Generations of a backend that speaks only the original's shape; versions unknown."""
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
    """SGLang answers {"type": "length", "length": 16}; everybody else a word, or null."""
    if isinstance(reason, Mapping):
        reason = reason.get("type")
    return str(reason) if reason else "stop"


def version_number(label: Any) -> int:
    """A server's weight label as a number: 3 and "3" are 3, null and "base" are unknown."""
    text = str(label)
    return int(text) if text.isdigit() else UNKNOWN_VERSION


def token_versions(num_tokens: int, spans: Any, label: Any) -> list[int]:
    """Version of each of T tokens, from ``[{"version": 3, "start": 0, "end": 6}, ...]``.

    Tokens in no span get ``label``, the version reported for the response as a whole.
    """
    versions = [version_number(label)] * num_tokens
    for span in spans or []:
        start, end = max(0, int(span["start"])), min(num_tokens, int(span["end"]))
        versions[start:end] = [version_number(span["version"])] * max(0, end - start)
    return versions


def stamped(output: Generation, version: int | None) -> Generation:
    """``output`` with ``version`` on the tokens whose version the server did not report.

    ``version`` is what was announced before the request was sent: where weights change while
    it runs, the label is too old rather than too new, and staleness is never understated.
    """
    if version is None or UNKNOWN_VERSION not in output.versions:
        return output
    known = [version if v == UNKNOWN_VERSION else v for v in output.versions]
    return replace(output, versions=known)
