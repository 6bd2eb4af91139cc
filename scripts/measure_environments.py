"""Measure the environments of CI on the tiny model, into docs/gallery.json.

    python scripts/measure_environments.py [NAME ...]

Runs tests/environments/test_every_environment.py and a part of test_library.py, and records CPU
seconds of the tests of ``process`` and ``evaluate``, and whose replies were scored. An environment
whose tests are skipped keeps its figures.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs/gallery.json"
EVERY = "tests/environments/test_every_environment.py"
LIBRARY = "tests/environments/test_library.py"
TIMED = {
    "test_process_writes_token_exact_groups": "process",
    "test_evaluate_writes_metrics_samples_and_settings": "evaluate",
}
SCORED = (
    "test_gold_replies_get_the_best_score",
    "test_adversarial_replies_get_no_more_than_the_floor",
)
BOTH_SCORED = "test_gold_replies_get_the_best_score_and_no_others_do"


class Recorder:
    """Plug-in of pytest: CPU seconds of passed tests by environment, and scored replies."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self.scored: dict[str, set[str]] = {}

    def pytest_collection_finish(self) -> None:
        """Imports cost seconds, which the first test would have."""
        import transformers

        import atroposlib.frontend.jsonl2html

        assert transformers.AutoTokenizer and atroposlib.frontend.jsonl2html

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Iterator[None]:
        before = cpu_seconds()
        result = yield  # raises what the test raises, a skip included
        params = getattr(item, "callspec", None) and item.callspec.params or {}
        name = params.get("name") or params.get("env_cls")
        if name is None:
            return result
        figures, test = self.found.setdefault(name, {}), item.originalname
        if test in TIMED:
            figures[TIMED[test]] = round(cpu_seconds() - before, 1)
        passed = self.scored.setdefault(name, set())
        passed.add(test)
        if BOTH_SCORED in passed or passed.issuperset(SCORED):
            figures["replies"] = "gold, adversarial"
        return result


def cpu_seconds() -> float:
    """CPU seconds of this process and of children that have ended."""
    return sum(os.times()[:4])


def main(names: list[str]) -> int:
    """Measure the named environments or all; returns the exit status of the tests."""
    suites = [EVERY, *(f"{LIBRARY}::{test}" for test in SCORED)]
    chosen = ["-k", " or ".join(f"[{name}" for name in names)] if names else []
    recorder = Recorder()
    status = int(
        pytest.main(["-q", "-p", "no:cacheprovider", *suites, *chosen], plugins=[recorder])
    )
    if status == 0:
        known = json.loads(TARGET.read_text(encoding="utf-8")) if TARGET.exists() else {}
        figures = {
            **known.get("environments", {}),
            **{k: v for k, v in recorder.found.items() if v},
        }
        figures = {name: figures[name] for name in sorted(figures)}
        about = "arithmetic and letters are processes, with their imports"
        text = json.dumps({"started": about, "environments": figures}, indent=1)
        TARGET.write_text(text + "\n", encoding="utf-8")
    return status


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
