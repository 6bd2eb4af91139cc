"""What a reply answers: its letter, its short answer; and how a short answer is compared."""

import re
import string
from collections import Counter
from collections.abc import Iterable

from atroposlib.envs.reward_fns.math_verify.checker import after_thinking

_LETTER = re.compile(r"(?i:\banswer)\b[\s*:]*(?:(?i:is)\b[\s*:]*)?[(\[]*([A-Z])\b(?!['’])")
_ONLY_LETTER = re.compile(r"[\s*(\[]*([A-Z])[\s*)\].:]*")
_ANSWER = re.compile(
    r"(?im)^[\s*]*(?:the )?(?:final )?answer(?: is)?[\s*]*:[\s*]*(.+?)[\s*]*$"
)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_MARKS = str.maketrans("", "", string.punctuation.replace("-", ""))


def letter(reply: str) -> str | None:
    """Capital after the last "answer" or "answer is", or a reply of one letter; None else."""
    text = after_thinking(reply)
    if alone := _ONLY_LETTER.fullmatch(text):
        return alone[1]
    found = _LETTER.findall(text)
    return found[-1] if found else None


def short_answer(reply: str) -> str | None:
    """Text of the last line "Answer: ...", or the only line of a reply; None else."""
    text = after_thinking(reply).strip()
    found = _ANSWER.findall(text)
    return found[-1] if found else text if text and "\n" not in text else None


def plain_words(text: str) -> list[str]:
    """Lower-case words without articles and punctuation, as SQuAD compares them."""
    return _ARTICLES.sub(" ", text.lower().replace("-", " ").translate(_MARKS)).split()


def exact(given: str, golds: Iterable[str]) -> float:
    """1 if the words are those of a gold answer, in their order."""
    return float(plain_words(given) in map(plain_words, golds))


def contains(given: str, golds: Iterable[str]) -> float:
    """1 if the words of a gold answer stand together in the given one."""
    held = f" {' '.join(plain_words(given))} "
    words = (" ".join(plain_words(gold)) for gold in golds)
    return float(any(gold and f" {gold} " in held for gold in words))


def f1(given: str, golds: Iterable[str]) -> float:
    """Harmonic mean of precision and recall of the words, for the closest gold answer.

    Rajpurkar et al. (2016), arXiv 1606.05250, section 6.1.
    """

    def of(gold: str) -> float:
        a, b = Counter(plain_words(given)), Counter(plain_words(gold))
        common = (a & b).total()
        return 2 * common / (a.total() + b.total()) if common else float(a == b)

    return max(map(of, golds), default=0.0)
