"""Answer in a reply, as a letter or a short text, and comparison of short answers."""

import re
import string
from collections import Counter
from collections.abc import Iterable

from atroposlib.text.answers import as_number, boxed_answer, plain_text
from atroposlib.text.parts import answer_of

_QUOTES = "\"'“”‘’`"
_OPTION = r"(?:(?i:the\s+)?(?i:option|choice|letter)\b[\s*:]*)?"
_LETTER = re.compile(
    rf"(?i:\banswer|\b(?:correct|right|best)\s+(?:option|choice)|\bI\s+(?:choose|pick|select))"
    rf"\b[\s*:]*(?:(?i:is)\b[\s*:]*)?{_OPTION}[(\[{_QUOTES}]*([A-Z])\b(?!['’]\w)"
)
_ONLY_LETTER = re.compile(
    rf"[\s*{_QUOTES}]*{_OPTION}[\s*(\[{_QUOTES}]*([A-Z])[\s*)\].:{_QUOTES}]*"
)
_ANSWER = re.compile(
    r"(?im)^[\s*]*(?:the )?(?:final )?answer(?: is)?[\s*]*:[\s*]*(.+?)[\s*]*$"
)
ARTICLES = frozenset({"a", "an", "the"})
# A number with its sign, point and parts (3.14, -5, 1/2, 3:30), a word with its ending (C++,
# C#), or any run without white space.
_TOKEN = re.compile(r"(?<![\w.])[-+]?(?:\d|\.\d)[\d.,:/^]*(?<![.,:/^])|[^\W\d]+[+#]+|[^\s-]+")
_NUMBER = re.compile(r"[-+]?[\d.,]+")
_DASHES = str.maketrans("\u2212\u2013\u2014", "---")
_MARKS = str.maketrans("", "", string.punctuation + "’‘“”")


def letter(reply: str) -> str | None:
    """Capital after the last "answer" or "answer is", in the last box, or alone in the reply.

    "The answer is option C", quotes and parentheses too. None for a reply without a letter.
    """
    text = answer_of(reply)
    box = boxed_answer(text)
    if box is not None:
        text = plain_text(box)
    if alone := _ONLY_LETTER.fullmatch(text):
        return alone[1]
    letters = _LETTER.findall(text)
    return letters[-1] if letters else None


def short_answer(reply: str) -> str | None:
    """Text of the last line "Answer: ...", or the only line of a reply; None else."""
    text = answer_of(reply).strip()
    answers = _ANSWER.findall(text)
    return answers[-1] if answers else text if text and "\n" not in text else None


def plain_words(text: str) -> list[str]:
    """Lower-case words without articles and punctuation, in the form that SQuAD compares.

    Numbers are numbers: "3.14" is not "314", "-5" not "5" and "1/2" not "12", but "1,000.0" is
    "1000". Signs at the end of a name count: "C++" is not "C".
    """
    tokens = _TOKEN.findall(text.lower().translate(_DASHES))
    words = (_word(token) for token in tokens)
    return [word for word in words if word and word not in ARTICLES]


def _word(token: str) -> str:
    if any(c.isdigit() for c in token) and not any(c.isalpha() for c in token):
        bare = token.strip("$£€%()[]{}\"'!?;*_.,:")
        bare = token if token.startswith((".", "-.")) else bare
        number = as_number(bare) if _NUMBER.fullmatch(bare) else None
        return bare if number is None else f"{number.normalize():f}"
    return token if token[-1:] in "+#" and token[0].isalpha() else token.translate(_MARKS)


def exact(given: str, golds: Iterable[str]) -> float:
    """1 if the words are those of a gold answer, in their order."""
    return float(plain_words(given) in map(plain_words, golds))


def contains(given: str, golds: Iterable[str]) -> float:
    """1 if the words of a gold answer stand together in the given answer."""
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
