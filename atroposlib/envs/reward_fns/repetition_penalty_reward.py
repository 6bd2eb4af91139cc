"""Repetition penalty: repeated words, phrases, stutters and sentences.

a loop               -> -1: most of the text repeats what is before it
too short            -> short_text_penalty
sentences repeated   -> paragraph_repetition_base_penalty - 0.4 * their share
otherwise            -> weighted rates of repeated words, phrases, stutters and sentence
                        beginnings; up to ``threshold`` nothing, then -0.1 down to -1
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction
from atroposlib.errors import ConfigError

T = TypeVar("T")

WEIGHTS = {"word": 0.3, "phrase": 0.4, "consecutive": 0.6, "beginning": 0.5}
STOPWORDS = frozenset(
    "about after also and are because been before being between both but can could did does "
    "for from had has have her here him his how into its just like more most much not now "
    "only other our out over same she should some such than that the their them then there "
    "these they this those through very was were what when where which while who will with "
    "would you your".split()
)
PHRASE_LENGTHS = (3, 4, 5)
MIN_PENALTY = -0.1  # penalty of any repetition above the threshold
SENTENCE_SHARE_PENALTY = 0.4
# A loop, in any language: so much of a text of so many characters is a copy of its beginning.
LOOP_SHARE = 0.9
LOOP_CHARS = 200


@registry.register("repetition_penalty")
class RepetitionPenaltyReward(RewardFunction):
    """0.0 for a text without repetition, down to -1.0 for a repetitive text.

    Args:
        threshold: rate of repetition that costs nothing.
        min_words, min_sentences: a text with fewer of either is short.
        short_text_penalty: score of a short text; 0.0 where short answers are welcome.
        paragraph_repetition_base_penalty: for any repeated sentence of more than 3 words.
        component_weights: changes to the weights of word, phrase, consecutive, beginning.
        stopwords: words whose repetition is free.
    """

    def __init__(
        self,
        threshold: float = 0.05,
        min_words: int = 10,
        min_sentences: int = 2,
        short_text_penalty: float = -0.1,
        paragraph_repetition_base_penalty: float = -0.6,
        component_weights: Mapping[str, float] | None = None,
        stopwords: Iterable[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        unknown = sorted(set(component_weights or {}) - set(WEIGHTS))
        if unknown:
            raise ConfigError(f"component_weights: {unknown[0]!r} is none of {list(WEIGHTS)}")
        if not 0.0 <= threshold < 1.0:
            raise ConfigError(f"threshold: {threshold} given; 0 or more and below 1 is needed")
        self.threshold = threshold
        self.min_words = min_words
        self.min_sentences = min_sentences
        self.short_text_penalty = short_text_penalty
        self.paragraph_repetition_base_penalty = paragraph_repetition_base_penalty
        self.component_weights = {**WEIGHTS, **(component_weights or {})}
        self.stopwords = STOPWORDS if stopwords is None else frozenset(stopwords)

    def compute(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        return [self._score(self.get_content(completion)) for completion in completions]

    def _score(self, text: str) -> float:
        words = _words(text)
        few = len(words) >= self.min_words and len({*words}) <= (1 - LOOP_SHARE) * len(words)
        if few or _repeated_share(text) > LOOP_SHARE:
            return -1.0
        sentences = [
            part_words for part in re.split(r"[.!?\n]+", text) if (part_words := _words(part))
        ]
        if len(words) < self.min_words or len(sentences) < max(1, self.min_sentences):
            return self.short_text_penalty
        again = _repeats(tuple(sentence) for sentence in sentences if len(sentence) > 3)
        if again:
            share = min(1.0, again / len(sentences))
            return self.paragraph_repetition_base_penalty - SENTENCE_SHARE_PENALTY * share
        rates = repetition_rates(words, sentences, self.stopwords)
        score = sum(self.component_weights[name] * rate for name, rate in rates.items())
        if score <= self.threshold:
            return 0.0
        over = (score - self.threshold) / (1.0 - self.threshold)
        return min(MIN_PENALTY, -min(1.0, over))


repetition_penalty_reward = RepetitionPenaltyReward.scores


def repetition_rates(
    words: Sequence[str], sentences: Sequence[Sequence[str]], stopwords: frozenset[str]
) -> dict[str, float]:
    """Shares of repeated text, by component; all but ``phrase`` lie in 0..1."""
    counts = Counter(word for word in words if len(word) > 3 and word not in stopwords)
    often = sum(count - 1 for count in counts.values() if count > 2)
    phrases = sum(
        (n / 3) * _repeats(zip(*(words[i:] for i in range(n)))) / max(1, len(words) - n + 1)
        for n in PHRASE_LENGTHS
    )
    stutters = sum(a == b and len(a) > 2 for a, b in zip(words, words[1:]))
    beginnings = _repeats(tuple(sentence[:3]) for sentence in sentences if len(sentence) >= 3)
    return {
        "word": often / len(words),
        "phrase": phrases,
        "consecutive": stutters / len(words),
        "beginning": beginnings / len(sentences),
    }


def _repeated_share(text: str) -> float:
    """Share of the text that compresses away; 0 for a short text, which has too few repetitions.

    Languages without spaces between words, like Chinese, have no further measure.
    """
    data = "".join(text.split()).encode(errors="replace")
    if len(data) < LOOP_CHARS:
        return 0.0
    return 1.0 - len(zlib.compress(data, 9)) / len(data)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.lower())


def _repeats(things: Iterable[T]) -> int:
    """Number of ``things`` that occurred before."""
    return sum(count - 1 for count in Counter(things).values())
