r"""Is the boxed answer right? Checked by math-verify on what follows the reasoning.

text -> after the last </think> -> last \boxed{...} -> equal number? -> math-verify
"""

from __future__ import annotations

import asyncio
import re
from decimal import Decimal
from enum import Enum

from atroposlib.envs.reward_fns.math_verify.process import MathProcess, NoVerdict

__all__ = [
    "MathVerifier",
    "NoVerdict",
    "Verdict",
    "after_thinking",
    "as_number",
    "boxed",
    "boxed_answer",
]

MAX_ANSWER_CHARS = 512  # a longer box holds a derivation, not an answer
_NUMBER = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?")
_AROUND_NUMBER = re.compile(r"\\[$%!,; ]|[$%\s]|\\(?:text|mathrm|,)\{?\s*\}?|\.$")


class Verdict(str, Enum):
    """What the check of one answer came to; that it failed is :class:`NoVerdict`."""

    CORRECT = "correct"
    WRONG = "wrong"


def after_thinking(text: str) -> str:
    """What follows the last ``</think>``; all of it where there is none."""
    return text.rpartition("</think>")[2]


def boxed_answer(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{...}``, braces balanced; None without one."""
    start = text.rfind("\\boxed{")
    while start != -1:
        depth = 0
        for i in range(start + len("\\boxed"), len(text)):
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            if depth == 0:
                return text[start + len("\\boxed{") : i].strip()
        start = text.rfind("\\boxed{", 0, start)
    return None


def boxed(answer: str) -> str:
    """``answer`` in a box, as math-verify looks for it."""
    return f"\\boxed{{{answer}}}"


def as_number(text: str) -> Decimal | None:
    """The number that ``text`` is, thousands commas, $ and % aside; None if it is more."""
    bare = _AROUND_NUMBER.sub("", text.strip())
    match = _NUMBER.fullmatch(bare)
    if match is None or not any(c.isdigit() for c in bare):
        return None
    return Decimal(bare.replace(",", ""))


class MathVerifier:
    """Judges answers; one process, started at the first answer that is not a plain number.

    Args:
        timeout_s: bound of one check, the start of the process apart.
    """

    def __init__(self, timeout_s: float = 10.0, start_timeout_s: float = 60.0) -> None:
        self.process = MathProcess(timeout_s, start_timeout_s)
        self._one_at_a_time = asyncio.Lock()

    async def judge(self, text: str, gold: str) -> Verdict:
        """Whether the boxed answer of ``text`` equals ``gold``; no box is wrong.

        Raises:
            NoVerdict: the check failed or took longer than ``timeout_s``.
        """
        answer = boxed_answer(after_thinking(text))
        if answer is None or len(answer) > MAX_ANSWER_CHARS:
            return Verdict.WRONG
        expected, number = as_number(gold), as_number(answer)
        if expected is not None and number is not None:
            return Verdict.CORRECT if expected == number else Verdict.WRONG
        async with self._one_at_a_time:  # waiting here takes no thread
            try:
                equal = await asyncio.to_thread(self.process.equal, boxed(answer), boxed(gold))
            except asyncio.CancelledError:
                self.process.kill()  # the thread that waits for it ends too
                raise
        return Verdict.CORRECT if equal else Verdict.WRONG

    async def close(self) -> None:
        """End the process; the next answer starts a new one."""
        self.process.close()
