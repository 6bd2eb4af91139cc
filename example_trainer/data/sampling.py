"""Sampling of a row's tokens: their temperatures, and whether their logprobs are the trainer's.

span of the row, else overrides, generation_params, group_overrides  -> temperature of a token
logprobs of the sampler   scaled by it: compared with the trainer's
                          truncated (top-p, top-k, min-p), penalised or constrained: trained,
                          not compared
                          raw, before a temperature not 1, or a penalty: refused
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from atroposlib.errors import InvalidGroup
from atroposlib.wire import MASKED, MASKED_VERSION, SampledSpan, ScoredData
from atroposlib.wire.messages import NEUTRAL_PENALTIES, cuts_in_force

# Rows that name no temperature: an error, 1 and a warning, or 1.
UnknownTemperature = Literal["refuse", "warn", "assume_1"]
NO_TEMPERATURE = (
    "rows come without the temperature they were sampled at: the gradient is wrong if it was not 1."
    " Sample through managed_server of this version, which sends it, or send"
    " generation_params={'temperature': ...} with each group (--unknown-temperature refuse ends the"
    " run instead, assume_1 omits this warning)"
)
TRUNCATED = (
    "the sampler's logprobs are of the tokens that top-p, top-k or min-p left, the trainer's of the"
    " whole vocabulary: importance weights are below 1 by the mass left out, and these tokens are"
    " not compared. Sample with top_p 1 and top_k -1, or with the local server"
)

SHIFTED = (
    "tokens were sampled with {}: the sampler's logprobs are of another distribution than the"
    " trainer's, which importance weights correct, and these tokens are not compared."
    " Sample without it to have every token compared"
)


def temperatures_of(
    group: ScoredData, g: int, labels: Sequence[int]
) -> tuple[list[float], bool]:
    """(T,) temperatures of row ``g``, and whether that of every trained token is named."""
    named = temperature_of(group, g)
    temperatures = [1.0 if named is None else _divisor(named)] * len(labels)
    known = [named is not None or label == MASKED for label in labels]
    for span in spans_of(group, g):
        start, end = span["start"], span["end"]
        temperatures[start:end] = [_divisor(span["temperature"])] * (end - start)
        known[start:end] = [True] * (end - start)
    return temperatures, all(known)


def spans_of(group: ScoredData, g: int) -> list[SampledSpan]:
    """The calls that sampled row ``g``; empty if its environment sent none."""
    return group.sampling[g] if group.sampling else []


def temperature_of(group: ScoredData, g: int) -> float | None:
    """Temperature outside spans: row override, else generation_params or group_overrides.

    Raises InvalidGroup: it is no finite number from 0 on.
    """
    override = (group.overrides[g] if group.overrides else None) or {}
    sources = {
        f"overrides[{g}]": override,
        "generation_params": group.generation_params or {},
        "group_overrides": group.group_overrides or {},
    }
    for source, values in sources.items():
        if (value := values.get("temperature")) is not None:
            return _number_from_0(value, source, group)
    return None


def _number_from_0(value: Any, source: str, group: ScoredData) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        name = named_environment(group) or "unnamed"
        problem = f"temperature {value!r:.40} is no finite number from 0 on"
        raise InvalidGroup(source, f" of environment {name}", problem)
    return number


def named_environment(group: ScoredData) -> str | None:
    """The name of the environment that sent a group; None: the group has no name."""
    name = (group.metadata or {}).get("env")
    return name if isinstance(name, str) else None


def at_temperature(group: ScoredData, temperature: float | None) -> ScoredData:
    """The group as sampled at the temperature of its algorithm, if the group names none.

    Raises:
        InvalidGroup: the group names a different temperature.
    """
    if temperature is None:
        return group
    rows_G = range(len(group.tokens))
    named = {span["temperature"] for g in rows_G for span in spans_of(group, g)}
    named |= {t for g in rows_G if (t := temperature_of(group, g)) is not None}
    if others := sorted(named - {temperature}):
        raise InvalidGroup(
            "sampling",
            f" of environment {named_environment(group)}",
            f"sampled at temperature {others[0]:g}, and its algorithm names {temperature:g}: the"
            " gradient would be of another policy; set one of them, or leave that of the"
            " algorithm out, because rows that name their temperature are scored at it",
        )
    params = {**(group.generation_params or {}), "temperature": temperature}
    return msgspec.structs.replace(group, generation_params=params)


def _divisor(temperature: float) -> float:
    """A temperature of 0 means greedy sampling, whose logprobs are taken at temperature 1."""
    return temperature if temperature > 0 else 1.0


def comparable_versions(versions: Sequence[int], spans: Sequence[SampledSpan]) -> list[int]:
    """(T - 1,) versions, unknown where the sampler's logprobs are of another distribution."""
    comparable = list(versions)
    for span in (span for span in spans if _is_truncated(span) or shifts(span)):
        places = range(max(0, span["start"] - 1), span["end"] - 1)  # predict the span's tokens
        for j in places:
            comparable[j] = MASKED_VERSION
    return comparable


def is_cut(span: Mapping[str, Any]) -> bool:
    """Whether its tokens were sampled from a part of the vocabulary."""
    return bool(cuts_in_force(span))


def shifts(span: Mapping[str, Any]) -> list[str]:
    """Penalties and constraints of a span, as text: ``["repetition_penalty 1.1", "bad_words"]``."""
    penalties = [
        f"{name} {span[name]:g}"
        for name, neutral in NEUTRAL_PENALTIES.items()
        if span.get(name, neutral) != neutral
    ]
    return penalties + list(span.get("constraints", ()))


def _is_truncated(span: SampledSpan) -> bool:
    return is_cut(span) and span.get("logprobs") == "truncated"


def sampling_notes(
    group_key: str,
    spans: Sequence[SampledSpan],
    is_known: bool,
    unknown: UnknownTemperature,
    counts: Counter[str],
) -> list[str]:
    """Sentences for the log about a row that is trained.

    Raises:
        InvalidGroup: its logprobs are not of the distribution that it was sampled from,
            or no temperature is named and this is refused.
    """
    counts["rows_without_temperature"] += not is_known
    where = f" of group {group_key}"
    if not is_known and unknown == "refuse":
        raise InvalidGroup("sampling", where, NO_TEMPERATURE)
    shifted: set[str] = set()
    for span in spans:
        causes = shifts(span)
        shifted.update(causes)
        if _divisor(span["temperature"]) != 1.0:
            causes = [f"temperature {span['temperature']:g}", *causes]
        if causes and span.get("logprobs") == "raw":
            raise InvalidGroup(
                "sampling",
                where,
                f"sampled with {', '.join(causes)} and the logprobs before it: start vLLM with"
                " --logprobs-mode processed_logprobs",
            )
    notes = [NO_TEMPERATURE] if not is_known and unknown == "warn" else []
    notes += [TRUNCATED] * any(map(_is_truncated, spans))
    return notes + ([SHIFTED.format(", ".join(sorted(shifted)))] if shifted else [])
