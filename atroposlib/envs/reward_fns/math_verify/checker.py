r"""Checks of mathematical answers: equal numbers, else math-verify in a child process.

text -> after the reasoning -> last \boxed{...} -> equal text or number? -> math-verify

math-verify computes what it reads, ``9^{9^{9}}`` included, and neither a thread nor a signal can
interrupt it. It therefore runs in a process that is killed after a time limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from enum import Enum
from functools import lru_cache
from importlib.util import find_spec
from typing import IO, Any

from atroposlib.errors import AtroposError, ConfigError, boundary
from atroposlib.text.answers import box_around, boxed_answer, in_latex, same_answer
from atroposlib.text.parts import answer_of

logger = logging.getLogger(__name__)
WORKER = "atroposlib.envs.reward_fns.math_verify.checker"
MAX_ANSWER_CHARS = 512  # a longer box holds a derivation, not an answer


class Correctness(str, Enum):
    """Result of a check."""

    CORRECT = "correct"
    WRONG = "wrong"


class CheckFailed(AtroposError):
    """The check failed or took too long; whether the answer is right is unknown."""


# --- checks ---


class MathVerifier:
    """Checks answers in ``size`` processes, so that a slow check does not delay the rest.

    Each process starts when an answer that is not a plain number first needs it. ``timeout_s``
    is the limit of a check, without the start.
    """

    def __init__(self, size: int = 1, timeout_s: float = 10.0) -> None:
        self.processes = [MathProcess(timeout_s) for _ in range(size)]
        self._idle: asyncio.LifoQueue[MathProcess] = asyncio.LifoQueue()
        for process in reversed(self.processes):  # the first is taken first and stays running
            self._idle.put_nowait(process)

    async def check(self, text: str, gold: str) -> Correctness | None:
        """Whether the boxed answer of ``text`` equals ``gold``; no box is wrong.

        None: the check failed or took too long, so the result is unknown.
        """
        answer = boxed_answer(answer_of(text))
        if answer is None or len(answer) > MAX_ANSWER_CHARS:
            return Correctness.WRONG
        equal = same_answer(answer, gold)
        if equal is not None:
            return Correctness.CORRECT if equal else Correctness.WRONG
        process = await self._idle.get()  # a waiting check takes no thread
        try:
            equal = await asyncio.to_thread(process.equal, in_box(answer), in_box(gold))
        except asyncio.CancelledError:
            process.kill()  # also ends the thread that waits for it
            raise
        except CheckFailed as failure:
            logger.warning("%s", failure)
            return None
        finally:
            self._idle.put_nowait(process)
        return Correctness.CORRECT if equal else Correctness.WRONG

    async def close(self) -> None:
        """End every process; the next answers start new processes."""
        for process in self.processes:
            process.close()


class MathProcess:
    """Compares answers one at a time; the child process starts at the first comparison.

    Thread-safe. The child ends with :meth:`close`, with the last reference to this object, or
    with the interpreter.

    Args:
        timeout_s: limit of a comparison, without the start of the process.

    Raises ConfigError: math-verify is not installed.
    """

    def __init__(self, timeout_s: float = 10.0, start_timeout_s: float = 60.0) -> None:
        if find_spec("math_verify") is None:
            raise ConfigError(
                "answers other than plain numbers need math-verify: "
                "pip install 'atropos-rl[math]'"
            )
        self.timeout_s = timeout_s
        self.start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., MathProcess] | None = None
        self._one_at_a_time = threading.Lock()

    @property
    def started(self) -> bool:
        """Whether the process has been started."""
        return self._process is not None

    def equal(self, text: str, gold: str) -> bool:
        r"""Whether the answer in ``text`` equals that in ``gold``; both may be LaTeX.

        An answer is ``\boxed{...}`` or a phrase like "the final answer is $...$". Raises
        CheckFailed: the comparison failed or took longer than ``timeout_s``.
        """
        with self._one_at_a_time:
            process = self._process or self._start()
            assert process.stdin is not None and process.stdout is not None  # both are pipes
            question = json.dumps({"text": text, "gold": gold}).encode() + b"\n"
            with suppress(OSError):  # the process has ended, and the reply will be empty
                process.stdin.write(question)
                process.stdin.flush()
            line = self._read(process.stdout, self.timeout_s)
        if not line:
            raise CheckFailed(f"no verdict on {text[:80]!r} within {self.timeout_s:g} s")
        reply = json.loads(line)
        if "error" in reply:
            raise CheckFailed(f"math-verify failed on {text[:80]!r}: {reply['error']}")
        return bool(reply["equal"])

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C goes to the environment, which closes this process
        )
        self._process = process
        self._end = weakref.finalize(self, _end, process)
        assert process.stdout is not None
        if not self._read(process.stdout, self.start_timeout_s):
            raise CheckFailed("the checking process did not start")
        return process

    def _read(self, lines: IO[bytes], timeout_s: float) -> bytes:
        """The next line; empty after a timeout, and the process is then ended."""
        bound = threading.Timer(timeout_s, self.kill)
        bound.start()
        try:
            line = lines.readline()
        finally:
            bound.cancel()
        if line.endswith(b"\n"):
            return line
        self.close()
        return b""

    def kill(self) -> None:
        """End a comparison in another thread, which then raises :class:`CheckFailed`."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process; the next comparison starts a new process."""
        self._process, end, self._end = None, self._end, None
        if end is not None:
            end()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # unsent data are dropped
            if pipe is not None:
                pipe.close()


@lru_cache(maxsize=1)
def shared_process() -> MathProcess:
    """Process shared by all rewards of this interpreter, because math-verify takes 100 MB."""
    return MathProcess()


def in_box(answer: str) -> str:
    """``answer`` in a box, as math-verify reads it."""
    return box_around(in_latex(answer))


# --- the child process ---


def equal(text: str, gold: str) -> bool:
    """Whether math-verify finds both equal. Its timeouts are off; the parent kills the process.

    A box is preferred; without a box only an announced answer counts. A gold answer that is no
    mathematics, for example a time of day, equals only the same text, which was compared
    before.
    """
    from math_verify import LatexExtractionConfig, parse, verify

    from atroposlib.envs.reward_fns.math_verify.exact_values import differ, is_undefined

    latex = [LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)]

    def read(source: str) -> list[Any]:
        parsed: list[Any] = parse(
            source, latex, extraction_mode="first_match", parsing_timeout=None
        )
        return [value for value in parsed if not is_undefined(value)]

    expected, actual = read(gold), read(text)
    if not expected or not actual:
        return False
    if not verify(expected, actual, timeout_seconds=None, raise_on_error=True):
        return False
    golds = [value for value in expected if not isinstance(value, str)]
    values = [value for value in actual if not isinstance(value, str)]
    return not golds or not values or not all(differ(value, golds[0]) for value in values)


def main() -> None:
    """Read lines ``{"text", "gold"}`` and write ``{"equal"}`` or ``{"error"}`` for each."""
    logging.disable(logging.WARNING)  # math-verify warns that its timeouts are off
    import math_verify  # noqa: F401  (paid before the first check, whose time is bounded)

    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            with boundary("math_answer", question["text"], "verify"):
                reply = {"equal": equal(question["text"], question["gold"])}
        except AtroposError as error:
            print(json.dumps({"error": str(error)}), flush=True)
        else:
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
