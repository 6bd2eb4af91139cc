"""Kinds of benchmark questions: how an answer is asked for and checked.

reply --check--> {"exact": 1.0, "answered": 1.0}, or None where it is unknown
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from atroposlib.environments.common import answers, instructions
from atroposlib.envs.reward_fns.math_verify.checker import Correctness, MathVerifier
from atroposlib.text.answers import box_around

Numbers = dict[str, float]


class Kind(NamedTuple):
    """How the answer is asked for ("": not at all), how it is checked, how a right reply ends."""

    ask: str
    check: Callable[[str, Any], Any]  # reply, answer -> numbers or None, sync or async
    says: Callable[[Any], str]


def check_letter(reply: str, right: str) -> Numbers:
    answer = answers.letter(reply)
    return {"exact": float(answer == right), "answered": float(answer is not None)}


def check_words(reply: str, golds: list[str]) -> Numbers:
    answer = answers.short_answer(reply)
    compared = (answers.exact, answers.f1, answers.contains)
    numbers = {
        metric.__name__: 0.0 if answer is None else metric(answer, golds)
        for metric in compared
    }
    return {**numbers, "answered": float(answer is not None)}


@lru_cache(maxsize=1)
def verifier() -> MathVerifier:
    return MathVerifier(size=2)


async def check_formula(reply: str, gold: str) -> Numbers | None:
    verdict = await verifier().check(reply, gold)
    if verdict is None:  # the check failed: unknown, which is not wrong
        return None
    answered = answers.boxed_answer(answers.answer_of(reply)) is not None
    return {"exact": float(verdict is Correctness.CORRECT), "answered": float(answered)}


def check_instructions(reply: str, wanted: list[Any]) -> Numbers | None:
    text = answers.answer_of(reply).strip()
    numbers = {"answered": float(bool(text))}
    for end, loose in (("", False), ("_loose", True)):
        verdicts = instructions.follow_verdicts(text, wanted, loose=loose)
        if None in verdicts:  # the language is not checked
            return None
        numbers[f"exact{end}"] = float(all(verdicts))
        numbers[f"instructions{end}"] = sum(map(bool, verdicts)) / len(verdicts)
    return numbers


FORM = Kind("", check_instructions, str)
CHOICE = Kind(
    "End with a line 'Answer: X', where X is the letter of the right option.",
    check_letter,
    "Answer: {}".format,
)
WORDS = Kind(
    "End with a line 'Answer: ...' that has the answer and nothing else.",
    check_words,
    lambda golds: f"Answer: {golds[0]}",
)
FORMULA = Kind("Put the final answer in \\boxed{}.", check_formula, box_around)
