"""Lines about a validation while a user waits."""

from __future__ import annotations

import threading

from atroposlib.validation.judges import JudgeCalls
from atroposlib.validation.progress import ValidationProgress, progress_reporter


def test_a_line_names_the_check_the_rollouts_and_the_judges():
    progress = ValidationProgress(JudgeCalls(5), check="score.order", rollouts=lambda: 12)
    assert progress.line().endswith("s: score.order, 12 rollouts")
    progress.calls.note("POST", "http://judge/v1/completions", b"")
    assert progress.line().endswith("12 rollouts, calls of other models: judge 1")


def test_lines_come_until_the_end():
    lines, told = list[str](), threading.Event()

    def tell(line: str) -> None:
        lines.append(line)
        told.set()

    with progress_reporter(ValidationProgress(JudgeCalls(5)), tell, every_s=0.01):
        assert told.wait(10)
    count = len(lines)
    assert count and not any(t.name == "progress" for t in threading.enumerate())
