"""A rule: a number, its words, and the pure function that looks for its evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atroposlib.doctor.evidence import Evidence, Finding, Severity

MOST_LINES = 5  # of evidence


class Found(NamedTuple):
    """Evidence with words that differ from those of the rule; empty: no finding."""

    evidence: Sequence[str]
    cause: str = ""
    remedy: str = ""
    severity: Severity | None = None


LookFor = Callable[[Evidence], Found | Sequence[str]]


@dataclass(frozen=True)
class Rule:
    """``number`` is that of the table in the documentation."""

    number: int
    key: str
    severity: Severity
    cause: str
    remedy: str
    look_for: LookFor

    def __call__(self, e: Evidence) -> Finding | None:
        lines = self.look_for(e)
        found = lines if isinstance(lines, Found) else Found(lines)
        if not (shown := [one for one in found.evidence if one]):
            return None
        if len(shown) > MOST_LINES:
            shown[MOST_LINES:] = [f"and {len(shown) - MOST_LINES} more"]
        severity = found.severity or self.severity
        words = (found.cause or self.cause, tuple(shown), found.remedy or self.remedy)
        return Finding(self.number, self.key, severity, *words, e.now.at)


def rule(number: int, severity: Severity, cause: str) -> Callable[[tuple[str, LookFor]], Rule]:
    """Make a rule of a function with a remedy; its key is the name of the function."""

    def make(remedied: tuple[str, LookFor]) -> Rule:
        remedy, look_for = remedied
        key = look_for.__name__.replace("_", "-")
        return Rule(number, key, severity, cause, remedy, look_for)

    return make


def fix(remedy: str) -> Callable[[LookFor], tuple[str, LookFor]]:
    """The remedy of a rule, between :func:`rule` and its function."""
    return lambda look_for: (remedy, look_for)
