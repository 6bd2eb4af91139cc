"""Progress of a validation, and the lines about it while a user waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from atroposlib.validation.judges import JudgeCalls

EVERY_S = 15.0


@dataclass
class ValidationProgress:
    """The check that runs, the rollouts played so far, and the calls of judges."""

    calls: JudgeCalls
    check: str = "setup"
    rollouts: Callable[[], int] = lambda: 0
    started: float = field(default_factory=time.monotonic)

    def begin(self, check: str) -> None:
        self.check = check

    def count(self, rollouts: Callable[[], int]) -> None:
        """Take the number of rollouts from ``rollouts``."""
        self.rollouts = rollouts

    def line(self) -> str:
        """Example: 30 s: score.order, 212 rollouts, calls of other models: localhost:9002 12."""
        seconds = time.monotonic() - self.started
        text = f"{seconds:.0f} s: {self.check}, {self.rollouts()} rollouts"
        if self.calls.count:
            text += f", calls of other models: {self.calls.addresses()}"
        return text


@contextmanager
def progress_reporter(
    progress: ValidationProgress, report: Callable[[str], object], every_s: float = EVERY_S
) -> Iterator[None]:
    """Report the progress every ``every_s``, from a thread: an environment may block the loop."""
    ended = threading.Event()

    def lines() -> None:
        while not ended.wait(every_s):
            report(progress.line())

    thread = threading.Thread(target=lines, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
