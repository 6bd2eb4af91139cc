"""math-verify in a process of its own, which can be ended whatever it is computing.

It computes what it reads, ``9^{9^{9}}`` included, and neither a thread nor a signal can end
that: so each check has a bound, after which the process is killed and the next starts anew.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from functools import lru_cache
from typing import IO

from atroposlib.errors import AtroposError

WORKER = "atroposlib.envs.reward_fns.math_verify.worker"


class NoVerdict(AtroposError):
    """The check itself failed or took too long; it says nothing about the answer."""


class MathProcess:
    """Compares answers, one at a time; the process starts at the first comparison.

    Safe to call from several threads. It ends with :meth:`close`, with the last reference
    to this object, or with the interpreter.

    Args:
        timeout_s: bound of one comparison, the start of the process apart.
    """

    def __init__(self, timeout_s: float = 10.0, start_timeout_s: float = 60.0) -> None:
        self.timeout_s = timeout_s
        self.start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., MathProcess] | None = None
        self._one_at_a_time = threading.Lock()

    @property
    def started(self) -> bool:
        """Whether the process is there."""
        return self._process is not None

    def equal(self, text: str, gold: str) -> bool:
        r"""Whether the answer in ``text`` equals that in ``gold``; both may be LaTeX.

        Looked for are ``\boxed{...}`` and phrases such as "the final answer is $...$".

        Raises:
            NoVerdict: the comparison failed or took longer than ``timeout_s``.
        """
        with self._one_at_a_time:
            process = self._process or self._start()
            assert process.stdin is not None and process.stdout is not None  # both are pipes
            question = json.dumps({"text": text, "gold": gold}).encode() + b"\n"
            with suppress(OSError):  # a process that has ended: the empty reply says so
                process.stdin.write(question)
                process.stdin.flush()
            line = self._read(process.stdout, self.timeout_s)
        if not line:
            raise NoVerdict(f"no verdict on {text[:80]!r} within {self.timeout_s:g} s")
        reply = json.loads(line)
        if "error" in reply:
            raise NoVerdict(f"math-verify failed on {text[:80]!r}: {reply['error']}")
        return bool(reply["equal"])

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the environment, which closes this
        )
        self._process = process
        self._end = weakref.finalize(self, _end, process)
        assert process.stdout is not None
        if not self._read(process.stdout, self.start_timeout_s):
            raise NoVerdict("the checking process did not start; is math-verify installed?")
        return process

    def _read(self, lines: IO[bytes], timeout_s: float) -> bytes:
        """The next line; empty, and the process gone, where none came in time."""
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
        """End a comparison that another thread waits for; that raises :class:`NoVerdict`."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process; the next comparison starts a new one."""
        self._process, end, self._end = None, self._end, None
        if end is not None:
            end()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # what was not sent yet has nobody to go to
            if pipe is not None:
                pipe.close()


@lru_cache(maxsize=1)
def shared_process() -> MathProcess:
    """The one of this interpreter: math-verify takes some 100 MB, rewards come in numbers."""
    return MathProcess()
