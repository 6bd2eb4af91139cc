r"""Is the boxed answer right? Checked by math-verify on what follows the reasoning.

    text -> after the last </think> -> last \boxed{...} -> equal number? -> math-verify

math-verify runs in a process of its own: it computes what it reads, ``9^{9^{9}}`` included,
and neither a thread nor a signal can end that. The process is killed after ``timeout_s``.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from decimal import Decimal
from enum import Enum

from atroposlib.errors import AtroposError

MAX_ANSWER_CHARS = 512  # a longer box holds a derivation, not an answer
_NUMBER = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?")
_AROUND_NUMBER = re.compile(r"\\[$%!,; ]|[$%\s]|\\(?:text|mathrm|,)\{?\s*\}?|\.$")


class Verdict(str, Enum):
    """What the check of one answer came to; that it failed is :class:`NoVerdict`."""

    CORRECT = "correct"
    WRONG = "wrong"


class NoVerdict(AtroposError):
    """The check itself failed or took too long; it says nothing about the answer."""


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
        self.timeout_s = timeout_s
        self.start_timeout_s = start_timeout_s
        self._process: asyncio.subprocess.Process | None = None
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
        async with self._one_at_a_time:
            equal = await self._ask(answer, gold)
        return Verdict.CORRECT if equal else Verdict.WRONG

    async def _ask(self, answer: str, gold: str) -> bool:
        process = self._process or await self._start()
        assert process.stdin is not None and process.stdout is not None  # both are pipes
        replied = False
        try:
            process.stdin.write(json.dumps({"answer": answer, "gold": gold}).encode() + b"\n")
            line = await asyncio.wait_for(process.stdout.readline(), self.timeout_s)
            replied = line.endswith(b"\n")
        except (asyncio.TimeoutError, ConnectionError) as error:
            raise NoVerdict(
                f"no verdict on {answer[:80]!r} within {self.timeout_s:g} s"
            ) from error
        finally:
            if not replied:  # also when cancelled: a late reply must not answer the next
                await self.close()
        reply = json.loads(line) if replied else {"error": "the checking process ended"}
        if "error" in reply:
            raise NoVerdict(f"math-verify failed on {answer[:80]!r}: {reply['error']}")
        return bool(reply["equal"])

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "atroposlib.envs.reward_fns.math_worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the environment, which closes this
        )
        self._process = process
        assert process.stdout is not None
        ready = b""
        try:
            ready = await asyncio.wait_for(process.stdout.readline(), self.start_timeout_s)
        except asyncio.TimeoutError as error:
            raise NoVerdict("the checking process did not start") from error
        finally:
            if not ready:
                await self.close()
        if not ready:
            raise NoVerdict("the checking process ended; is math-verify installed?")
        return process

    async def close(self) -> None:
        """End the process; the next answer starts a new one."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
