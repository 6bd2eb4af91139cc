"""Sentences about settings that cannot be used: place, reason, nearest known name. Pure.

run.yaml:3: env.group_sise is no setting; did you mean env.group_size?
--env.group_size should be a whole number, not 'eight'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import ValidationError

# Names of foreign trainers that are spelt unlike ours.
ELSEWHERE = {
    "learning_rate": "lr",
    "max_steps": "training_steps",
    "steps": "training_steps",
    "output_dir": "save_path",
    "per_device_train_batch_size": "batch_size",
    "num_train_epochs": "epochs",
    "max_length": "seq_len",
    "max_seq_length": "seq_len",
    "report_to": "trackers",
    "save_steps": "checkpoint_interval",
    "gradient_clipping": "max_grad_norm",
}
MAX_NAMES = 3
# What pydantic writes, and what is written here.
WORDS = (
    (r"^(Value error,|\w+(?= should)) ", ""),
    (r" after validation.*", ""),
    (r", unable to (parse|interpret) .*", ""),
    (r"valid integer.*", "whole number"),
    (r"a valid boolean", "true or false"),
    (r"a valid string", "text"),
    (r"a valid dictionary( or instance of \w+)?", "a mapping"),
    (r"a valid ", "a "),
    (r"greater than or equal to", "at least"),
    (r"less than or equal to", "at most"),
)
SECRET = "api_key"


@dataclass(frozen=True)
class Contradiction:
    """Settings that are each valid, and not together."""

    names: tuple[str, ...]  # the setting to change comes first
    reason: str


class Contradictions(ConfigError):
    """Settings contradict each other; the message has all reasons."""

    def __init__(self, contradictions: Sequence[Contradiction]) -> None:
        super().__init__("; ".join(entry.reason for entry in contradictions))
        self.contradictions = contradictions


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean --port?``, or nothing; several names where their last parts are alike."""
    names = {_plain(name): name for name in known}
    word = _plain(word)
    last = _last(word)
    meant = [ELSEWHERE[last]] if ELSEWHERE.get(last) in names else []
    meant += get_close_matches(word, names, n=1, cutoff=0.8)
    meant += [name for name in names if name != word and _last(name) == last]
    if not meant:
        close = get_close_matches(last, map(_last, names), n=1)
        meant = [name for name in names if _last(name) in close]
    if not meant and "." not in word:
        meant = [name for name in names if name and word.startswith(name)]
    listed = " or ".join(names[name] for name in list(dict.fromkeys(meant))[:MAX_NAMES])
    return f"; did you mean {listed}?" if listed else ""


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def no_setting(place: str, key: str, known: Iterable[str]) -> str:
    """The sentence about an unknown name, or about a group of settings with a single value."""
    inside = [name for name in known if name.startswith(f"{key}.")]
    if inside:
        return f"{place} is a group of settings, not one: {', '.join(inside[:MAX_NAMES])} ..."
    return f"{place} is no setting{did_you_mean(key, known)}"


def settings_error(
    error: ValidationError,
    place: Callable[[str], str],
    known: Iterable[str] = (),
    above: str = "",
) -> ConfigError:
    """Pydantic's error as an error of settings: a sentence for each; API keys are not shown.

    Args:
        place: of a key with dots.
        known: keys that an unknown key may mean.
        above: section that the keys of the error are below, with its dot.
    """
    sentences = []
    for problem in error.errors():
        # The error of a whole section has no location.
        key = (above + ".".join(map(str, problem["loc"]))).removesuffix(".")
        sentences.append(_sentence(dict(problem), key, place(key), known))
    return ConfigError("; ".join(dict.fromkeys(sentences)))


def _sentence(problem: dict[str, Any], key: str, place: str, known: Iterable[str]) -> str:
    kind, reason, value = problem["type"], problem["msg"], problem["input"]
    if kind == "missing":
        return f"{place} is required"
    if kind == "extra_forbidden":
        return no_setting(place, key, known)
    for pattern, word in WORDS:
        reason = re.sub(pattern, word, reason)
    if not reason.startswith("should "):
        return f"{place}: {reason}"
    is_plain = kind != "value_error" and isinstance(value, (str, int, float, list, type(None)))
    shown = f", not {value!r}" if is_plain and SECRET not in key else ""
    return f"{place} {reason}{shown}"
