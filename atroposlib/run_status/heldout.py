"""Held-out checks: results of the environment on problems that are never trained on.

<out>/heldout/step-<n>/metrics.json   rates, with the step and the policy version
<out>/heldout/step-<n>/samples.jsonl  a JSON object per answer
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atroposlib.text.lines import json_line, json_lines
from atroposlib.trackers import finite_number

SAMPLES_KEPT = 200  # samples of each check, in samples.jsonl of the run


@dataclass(frozen=True)
class Check:
    """A pass over the held-out problems."""

    step: int
    version: int
    exact: float | None  # None: the environment has no exact measure
    reward: float | None
    directory: Path

    @property
    def rate(self) -> float:
        """The exact rate or, without that measure, the mean reward."""
        rate = self.reward if self.exact is None else self.exact
        assert rate is not None  # read_check leaves out a check without both
        return rate


@dataclass(frozen=True)
class HeldoutSample:
    """Answer to a held-out problem, at a version of the weights."""

    version: int
    prompt: str
    completion: str
    expected: str
    reward: float
    exact: bool | None  # None: the environment has no exact measure
    step: int = 0

    @property
    def right(self) -> bool:
        """Whether it is exact or, without that measure, has the reward of a right answer."""
        return self.reward >= 1 if self.exact is None else self.exact


@dataclass
class Heldout:
    """All checks of a run, read from disk on every call: there are only a few."""

    directory: Path
    _answers: dict[Path, dict[str, HeldoutSample]] = field(default_factory=dict)

    def read(self) -> list[Check]:
        """Read the checks in order of their steps."""
        if not self.directory.is_dir():
            return []
        checks = [
            check
            for path in self.directory.iterdir()
            if re.fullmatch(r"step-\d+", path.name) and (check := read_check(path)) is not None
        ]
        return sorted(checks, key=lambda check: check.step)

    def answers(self) -> list[tuple[HeldoutSample, ...]]:
        """Return the answers to each problem in order of their steps, an answer per check."""
        by_task: dict[str, list[HeldoutSample]] = {}
        for check in self.read():
            if not self._answers.get(check.directory):
                self._answers[check.directory] = answers_of(check)
            for problem, sample in self._answers[check.directory].items():
                by_task.setdefault(problem, []).append(sample)
        return [tuple(samples) for samples in by_task.values()]

    def copy_samples(self, target: Path) -> None:
        """Write every check's answers into a single file, each line with its step and version."""
        with target.open("w", encoding="utf-8") as out:
            for check in self.read():
                for line in lines_of(check)[:SAMPLES_KEPT]:
                    labelled = {"step": check.step, "version": check.version, **line}
                    out.write(json_line(labelled))


def read_check(directory: Path) -> Check | None:
    """Read a check; None while it is being written, or without a rate."""
    path = directory / "metrics.json"
    if not path.is_file():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    about, results = document["config_general"], document["results"]["all"]
    rates = {name.removeprefix("eval/"): value for name, value in results.items()}
    exact, reward = finite_number(rates.get("exact")), finite_number(rates.get("reward"))
    if exact is None and reward is None:
        return None
    return Check(
        step=int(about.get("eval_step", directory.name.removeprefix("step-"))),
        version=int(about.get("eval_policy_version", 0)),
        exact=exact,
        reward=reward,
        directory=directory,
    )


def lines_of(check: Check) -> list[dict[str, Any]]:
    path = check.directory / "samples.jsonl"
    if not path.is_file():
        return []
    return json_lines(path.read_text(encoding="utf-8"))


def answers_of(check: Check) -> dict[str, HeldoutSample]:
    """Return the first answer to each problem of a check."""
    samples: dict[str, HeldoutSample] = {}
    for line in lines_of(check):
        problem = str(line.get("id") or line.get("prompt"))
        samples.setdefault(problem, sample_of(line, check))
    return samples


def sample_of(line: Mapping[str, Any], check: Check) -> HeldoutSample:
    """Parse a line of samples.jsonl, in the format of this repository's environments."""
    prompt, exact = line.get("prompt", ""), line.get("exact")
    if isinstance(prompt, list):  # the messages before the answer
        prompt = prompt[-1].get("content") if prompt else ""
    return HeldoutSample(
        version=check.version,
        prompt=str(prompt),
        completion=str(line.get("completion") or "(empty)"),
        expected=str(line.get("expected", "")),
        reward=float(line.get("reward") or 0.0),
        exact=None if exact is None else bool(exact),
        step=check.step,
    )
