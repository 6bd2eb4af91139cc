"""A rule: a number, its words, and the pure function that looks for its evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atroposlib.doctor.evidence import Evidence, Finding, Severity


class Found(NamedTuple):
    """What a rule found. Empty fields: the words of the rule."""

    evidence: Sequence[str]
    cause: str = ""
    remedy: str = ""
    severity: Severity | None = None


@dataclass(frozen=True)
class Rule:
    """``number`` is that of the table in the documentation."""

    number: int
    key: str
    severity: Severity
    cause: str
    remedy: str
    look_for: Callable[[Evidence], Found | None]

    def __call__(self, evidence: Evidence) -> Finding | None:
        found = self.look_for(evidence)
        if found is None:
            return None
        return Finding(
            self.number,
            self.key,
            found.severity or self.severity,
            found.cause or self.cause,
            tuple(found.evidence),
            found.remedy or self.remedy,
            evidence.now.at,
        )


def rule(
    number: int, key: str, severity: Severity, cause: str, remedy: str
) -> Callable[[Callable[[Evidence], Found | None]], Rule]:
    """Make a rule of a function."""
    return lambda look_for: Rule(number, key, severity, cause, remedy, look_for)
