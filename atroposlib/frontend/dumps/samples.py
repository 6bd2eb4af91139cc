"""Samples of a dump, and their groups in the form of a file of this package. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atroposlib.wire import MASKED, MASKED_LOGPROB, MASKED_VERSION
from atroposlib.wire.numbers import finite_float

Record = Mapping[str, Any]
Message = dict[str, Any]


@dataclass(frozen=True)
class DumpSample:
    """A sample of a dump. Unknown is None, or empty.

    Logprobs, versions and advantages have an entry for each trained token.
    """

    prompt_id: (
        Hashable  # samples of a file with this id are a group; None: the group is unknown
    )
    messages: list[Message]
    score: float | None
    named: dict[str, float] = field(default_factory=dict)  # rewards
    finish: str | None = None
    env: str | None = None
    item: str | None = None
    step: int | None = None
    tokens: list[int] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)  # (T,)
    logprobs: list[float] | None = None
    versions: list[int] | None = None
    advantages: list[float] | None = None
    more: dict[str, Any] = field(default_factory=dict)  # shown with the messages


# Name of a part -> whether a sample has it.
PARTS = {
    "rewards": lambda sample: sample.score is not None,
    "messages by role": lambda sample: has_roles(sample.messages),
    "groups": lambda sample: sample.prompt_id is not None,
    "steps": lambda sample: sample.step is not None,
    "finish reasons": lambda sample: sample.finish is not None,
    "tokens": lambda sample: bool(sample.tokens),
    "logprobs": lambda sample: sample.logprobs is not None,
    "policy versions": lambda sample: sample.versions is not None,
    "advantages": lambda sample: sample.advantages is not None,
}
PROMPT, TEXT = "prompt", "text"  # roles of decoded text, whose own roles are unknown


def has_roles(messages: Sequence[Message]) -> bool:
    return bool(messages) and all(m.get("role") not in (PROMPT, TEXT) for m in messages)


def missing_parts(samples: Sequence[DumpSample]) -> list[str]:
    """Names of the parts that no sample has."""
    return [name for name, has in PARTS.items() if not any(map(has, samples))]


def dump_groups(samples: Sequence[DumpSample]) -> list[dict[str, Any]]:
    """Groups of the samples of a file, in the order of their first."""
    groups: dict[Hashable, list[DumpSample]] = {}
    for number, sample in enumerate(samples):
        key = (
            ("alone", number) if sample.prompt_id is None else (sample.step, sample.prompt_id)
        )
        groups.setdefault(key, []).append(sample)
    return [dump_group(group) for group in groups.values()]


def dump_group(samples: Sequence[DumpSample]) -> dict[str, Any]:
    """Samples of a prompt as a group of a file."""
    first = samples[0]
    facts = {"env": first.env, "item": first.item, "step": first.step}
    absent = missing_parts(samples)
    about: dict[str, Any] = {name: value for name, value in facts.items() if value is not None}
    if absent:
        about["not in the dump"] = ", ".join(absent)
    about |= {
        name: value
        for name, value in first.more.items()
        if value is not None and name not in about
    }
    about["named_rewards"] = [sample.named for sample in samples]
    return {
        "messages": [sample.messages for sample in samples],
        "scores": [sample.score for sample in samples],
        "finish_reasons": [sample.finish for sample in samples],
        "tokens": [sample.tokens for sample in samples],
        "masks": [
            [token if own else MASKED for token, own in zip(sample.tokens, sample.trained)]
            for sample in samples
        ],
        "inference_logprobs": [_spread(s, s.logprobs, MASKED_LOGPROB) for s in samples],
        "versions": [_spread(s, s.versions, MASKED_VERSION) for s in samples],
        "advantages": [_spread(s, s.advantages, 0.0) for s in samples],
        "metadata": about,
    }


def _spread(sample: DumpSample, values: Sequence[Any] | None, masked: Any) -> list[Any] | None:
    """Values of the trained tokens at the places of all tokens, (T,); None for another number."""
    if values is None or len(values) != sum(sample.trained):
        return None
    left = iter(values)
    return [next(left) if own else masked for own in sample.trained]


# --- values of records ------------------------------------------------------------------


def numbers_of(values: Any) -> dict[str, float]:
    """The finite numbers of a mapping; {} for anything else."""
    pairs = values.items() if isinstance(values, Mapping) else ()
    known = ((str(name), finite_float(value)) for name, value in pairs)
    return {name: value for name, value in known if value is not None}


def text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def prompt_messages(prompt: Any) -> list[Message]:
    """Messages of a prompt: a decoded text is a single message of no role."""
    if isinstance(prompt, list):
        return [dict(message) for message in prompt if isinstance(message, Mapping)]
    return [{"role": PROMPT, "content": prompt}] if prompt else []


def reply_messages(reply: Any) -> list[Message]:
    """Messages of a reply: a text is that of an assistant."""
    if isinstance(reply, list):
        return [dict(message) for message in reply if isinstance(message, Mapping)]
    return [{"role": "assistant", "content": "" if reply is None else str(reply)}]
