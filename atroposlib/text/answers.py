r"""The answer in a reply, and whether it is right without mathematics.

    reply -> after the reasoning -> last box, or last "#### ..." -> equal texts? equal numbers?

The only reader of answers. Answers that texts and numbers do not decide are left to
math-verify (``envs/reward_fns/math_verify``).
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
# Content of a box without braces: a number, a letter, or a command with its braces.
_BARE = re.compile(r"-?\d[\d.,]*(?<![.,])|[A-Za-z](?![A-Za-z])|\\[A-Za-z]+(?:\{[^{}]*\})+")
_HASHES = re.compile(r"####[ \t]*((?:(?!####)[^\n])*)")
ANNOUNCED = re.compile(r"(?i)\b(?:final\s+answer|answer\s+is)\b")

# A number and its thousands separators: 1,000; 1{,}000; 1\,000; 1 000.
_GROUP = r"(?:,|\{,\}|\\[,!:; ]|[ \u00a0\u2009\u202f~])"
_NUMBER = re.compile(rf"([-+]?)\s*((?:\d{{1,3}}(?:{_GROUP}\d{{3}})+|\d+)?(?:\.\d+)?)")
_SEPARATOR = re.compile(_GROUP)
_SPACED_NUMBERS = re.compile(r"[-+]?[\d.,]+(?:\s+[-+]?[\d.,]+)+")
_MIXED = re.compile(r"([-+]?)(\d+)\s+(\d+)\s*/\s*(\d+)")
_CURRENCY = re.compile(r"\\?\$|[£€]")
_EDGES = re.compile(r"\A(?:\\[,!:; ]|[\s~])+|(?:\\[,!:; ]|[\s~]|\\(?:text|mathrm)\{\s*\})+\Z")
_PERCENT = re.compile(r"\\?%\Z")

_DROPPED = re.compile(
    r"\\(?:left|right|displaystyle|bigl?|bigr|Bigl?|Bigr)(?![A-Za-z])|\\[,!:; ]|[$~]"
)
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")
_LOOSE_SPACE = re.compile(r"(?<![^\W_])\s+|\s+(?![^\W_])")
_WORDS = re.compile(r"[^\W\d_][^\W\d_' -]{2,}")
_LETTER_OPTION = re.compile(r"\(([A-Z])\)|([A-Z])[.)]")


# --- where the answer is ---


def box_around(answer: str) -> str:
    """``answer`` in a box, the form that math-verify extracts."""
    return f"\\boxed{{{answer}}}"


def boxed_answers(text: str) -> list[str]:
    r"""Content of each complete ``\boxed{...}``, ``\boxed {...}`` or ``\boxed7``, in order."""
    answers, at = [], 0
    while box := _BOX.search(text, at):
        at = box.end()
        if text.startswith("{", at):
            end = _closing_brace(text, at)
            if end is not None:
                answers.append(text[at + 1 : end].strip())
                at = end
        elif bare := _BARE.match(text, at):
            answers.append(bare.group())
            at = bare.end()
    return answers


def boxed_answer(text: str) -> str | None:
    """Content of the last complete box that is not empty; None without a box."""
    return next((answer for answer in reversed(boxed_answers(text)) if answer), None)


def stated_answer(text: str) -> str | None:
    """The last of the boxes and of the lines "#### ..."; None without any."""
    marked = list(_HASHES.finditer(text))
    last_box = max((box.start() for box in _BOX.finditer(text)), default=-1)
    if marked and marked[-1].start() > last_box and marked[-1][1].strip():
        return marked[-1][1].strip()
    return boxed_answer(text)


def _closing_brace(text: str, at: int) -> int | None:
    r"""Position of the brace that closes the brace at ``at``; ``\{`` and ``\}`` do not count."""
    depth, i = 0, at
    while i < len(text):
        if text[i] == "\\":
            i += 1
        else:
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            if depth == 0:
                return i
        i += 1
    return None


# --- whether it is right ---


def as_number(text: str) -> Decimal | None:
    """``text`` as a number, without currency and %; None for text without a number.

    Digits separated by white space that is no thousands separator are several numbers.
    """
    bare = _without_edges(_PERCENT.sub("", _without_edges(_CURRENCY.sub("", text))))
    bare = _without_edges(bare.removesuffix(".")).replace("\u2212", "-")
    number = _NUMBER.fullmatch(bare)
    if number is None or not any(c.isdigit() for c in bare):
        return None
    return Decimal(number[1] + _SEPARATOR.sub("", number[2]))


def is_percent(text: str) -> bool:
    """Whether ``text`` is a number in percent."""
    return bool(_PERCENT.search(_without_edges(text.replace("$", "")).removesuffix(".")))


def plain_text(answer: str) -> str:
    r"""``answer`` without parts that do not change its meaning, for comparison of texts.

    Example: ``$\left( \text{A} \right)$`` and ``(A)`` are both ``A``.
    """
    text = answer.strip().replace("\u2212", "-")
    text = _FRACTION.sub(r"\\frac", _TEXT.sub(r"\1", _DROPPED.sub(" ", text)))
    text = text.replace("\\%", "%").replace("\\{", "{").replace("\\}", "}")
    text = _LOOSE_SPACE.sub("", re.sub(r"\s+", " ", text)).removesuffix(".").strip()
    if option := _LETTER_OPTION.fullmatch(text):
        return option[1] or option[2]
    return text.casefold() if _WORDS.fullmatch(text) else text


def same_answer(answer: str, gold: str, tolerance: float = 0.0) -> bool | None:
    """Whether ``answer`` is ``gold``, by texts and numbers; None where they do not decide.

    50% equals 50 and 0.5, because a question may want either.

    Args:
        tolerance: largest relative difference of equal numbers. Two whole numbers are equal
            only exactly.
    """
    if plain_text(answer) == plain_text(gold):
        return True
    number, expected = as_number(answer), as_number(gold)
    if number is None or expected is None:
        several = _SPACED_NUMBERS.fullmatch(_without_edges(answer))
        return False if several and expected is not None else None
    readings = [(number, expected)]
    in_percent = is_percent(answer)
    if in_percent != is_percent(gold):
        readings.append((number / 100, expected) if in_percent else (number, expected / 100))
    return any(_close(a, b, tolerance) for a, b in readings)


def in_latex(answer: str) -> str:
    """``answer`` for math-verify: a mixed number, 2 3/4, becomes 11/4, not a product."""
    mixed = _MIXED.fullmatch(_without_edges(answer.replace("$", "")))
    if mixed is None or int(mixed[4]) == 0:
        return answer
    value = int(mixed[2]) + Fraction(int(mixed[3]), int(mixed[4]))
    return f"{mixed[1]}\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _close(a: Decimal, b: Decimal, tolerance: float) -> bool:
    if a == b:
        return True
    if a == a.to_integral_value() and b == b.to_integral_value():
        return False
    largest = max(abs(a), abs(b))
    return abs(a - b) <= Decimal(tolerance) * largest


def _without_edges(text: str) -> str:
    return _EDGES.sub("", text.strip())
