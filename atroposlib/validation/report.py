"""Findings of a validation, and their report as a table, as JSON and as an exit status."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from atroposlib.errors import AtroposError
from atroposlib.utils.command.logs import printable

SHOWN_CHARS = 400  # limit of a reply or an error in the report
SHOWN = 3  # pieces of evidence of a finding
LINE_CHARS = 100


class NothingCompared(AtroposError):
    """A check had nothing to compare, so that it neither passes nor fails; the text is the reason."""


class Verdict(str, Enum):
    """Outcome of a check."""

    PASS = "pass"
    WARN = "warn"  # a mistake in most environments; fails under --strict
    FAIL = "fail"
    SKIP = "skip"  # it does not apply, with the reason


@dataclass(frozen=True)
class Proof:
    """A rollout that a finding rests on."""

    task: str
    reply: str = ""
    score: float | None = None
    note: str = ""

    def shortened(self) -> dict[str, Any]:
        cut = {name: getattr(self, name)[:SHOWN_CHARS] for name in ("reply", "note")}
        return {**asdict(self), **{name: text for name, text in cut.items()}}


@dataclass(frozen=True)
class CheckResult:
    """Verdict of a check, the reason on a single line, and the rollouts behind the verdict."""

    check: str
    verdict: Verdict
    text: str = ""
    evidence: Sequence[Proof] = ()


@dataclass
class Report:
    """All findings of an environment."""

    environment: str
    package: str = ""
    version: str = ""
    digest: str = ""
    seconds: float = 0.0
    slow_s: float = 0.0  # seconds of a slow rollout, which reduced the number of rollouts
    findings: list[CheckResult] = field(default_factory=list)

    def flagged(self, strict: bool = True) -> list[str]:
        """Checks that failed and, if ``strict``, checks that warned."""
        counted = {Verdict.FAIL, Verdict.WARN} if strict else {Verdict.FAIL}
        return [finding.check for finding in self.findings if finding.verdict in counted]

    def passed(self, strict: bool = False) -> bool:
        return bool(self.findings) and not self.flagged(strict)

    def as_json(self) -> str:
        findings = [
            {
                "check": finding.check,
                "verdict": finding.verdict.value,
                "text": finding.text,
                "evidence": [piece.shortened() for piece in finding.evidence[:SHOWN]],
            }
            for finding in self.findings
        ]
        about = {name: getattr(self, name) for name in ("package", "version", "digest")}
        whole = {"environment": self.environment, **about, "passed": self.passed()}
        times = {"seconds": round(self.seconds, 2), "slow_s": round(self.slow_s, 2)}
        return json.dumps({**whole, **times, "findings": findings}, indent=2)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.as_json() + "\n", encoding="utf-8")

    def table(self) -> str:
        """A line for each finding, and the first evidence of findings that did not pass."""
        lines = []
        for finding in self.findings:
            lines.append(
                f"{finding.check:<16} {finding.verdict.value:<5} {finding.text}".rstrip()
            )
            if finding.evidence and finding.verdict in (Verdict.FAIL, Verdict.WARN):
                piece = finding.evidence[0]
                score = "no score" if piece.score is None else f"score {piece.score:.4g}"
                # What went wrong comes before the reply, which may be longer than the line.
                shown = [f"task {piece.task}", piece.note or score]
                shown += [repr(piece.reply)] if piece.reply else []
                lines.append(f"{'':<22} {printable(': '.join(shown))[:LINE_CHARS]}")
        counts = {
            kind: [finding.verdict for finding in self.findings].count(kind)
            for kind in Verdict
        }
        total = ", ".join(f"{count} {kind.value}" for kind, count in counts.items() if count)
        lines.append(f"{self.environment}: {total} in {self.seconds:.1f} s")
        if self.slow_s:
            lines.append(f"a rollout takes {self.slow_s:.1f} s, so fewer tasks were played")
        return "\n".join(lines)
