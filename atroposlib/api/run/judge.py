"""Verdict on the run by the rules of ``atroposlib.run_status``, over samples of this process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from time import monotonic
from typing import Any

from atroposlib.api.run.events import Events
from atroposlib.api.run.metrics import Metrics
from atroposlib.run_status.evidence import Evidence, Finding, RunSample
from atroposlib.run_status.verdict import StatusVerdict, judge
from atroposlib.wire import RunStatus, VerdictReport

APART_S = 2.0  # least time between two samples that are compared
FEW = 16  # processes, whose verdict takes a few ms
COMPARED_S = 10.0  # an older sample shows no present progress


class Judge:
    """Samples of the last ``COMPARED_S``, a sample for each status that is read.

    A call changes nothing of the run. The first call in a while has nothing to compare with, so
    lack of progress shows from the second call on.
    """

    def __init__(self, metrics: Metrics, events: Events, clock: Callable[[], float]) -> None:
        self._metrics, self._events, self._clock = metrics, events, clock
        self._samples: deque[tuple[float, RunSample]] = deque()
        self._known: dict[str, Finding] = {}
        self._turn = asyncio.Lock()

    async def verdict(self, status: RunStatus, answer_s: float) -> VerdictReport:
        """The verdict on ``status``, which took ``answer_s`` to read.

        Publishes an event for each finding that began or ended. With a thousand processes the
        rules take tens of ms, so they run in a thread; with a few the way to a thread and back
        lasts longer, because threads that read large posts compete for the interpreter.
        """
        async with self._turn:
            if len(status.participants) <= FEW:
                return self._report_of(self._judge(status, answer_s))
            return self._report_of(await asyncio.to_thread(self._judge, status, answer_s))

    def _judge(self, status: RunStatus, answer_s: float) -> StatusVerdict:
        now = RunSample(
            self._clock(),
            status.model_dump(mode="json"),
            answer_s=answer_s,
            counters=self._metrics.counters(),
        )
        return judge(Evidence("this API", self._earlier_than(now), now))

    def _report_of(self, verdict: StatusVerdict) -> VerdictReport:
        """The verdict, its findings with the times of their beginnings."""
        findings = {finding.key: finding for finding in verdict.findings}
        for key in findings.keys() & self._known.keys():  # time of its beginning
            findings[key] = replace(findings[key], at=self._known[key].at)
        self._publish_changes(findings)
        self._known = findings
        shown = replace(verdict, findings=tuple(findings.values()))
        return VerdictReport.model_validate(asdict(shown))

    def _earlier_than(self, now: RunSample) -> RunSample:
        """The oldest sample to compare with; ``now`` if there is none. Keeps ``now``."""
        at, samples = monotonic(), self._samples
        while samples and at - samples[0][0] > COMPARED_S:
            samples.popleft()
        oldest = samples[0][1] if samples and at - samples[0][0] >= APART_S else now
        if not samples or at - samples[-1][0] >= APART_S:
            samples.append((at, now))
        return oldest

    def _publish_changes(self, findings: dict[str, Finding]) -> None:
        changes = (
            ("began", findings, findings.keys() - self._known.keys()),
            ("ended", self._known, self._known.keys() - findings.keys()),
        )
        for change, known, keys in changes:
            for key in keys:
                finding = known[key]
                words: dict[str, Any] = {"severity": finding.severity, "cause": finding.cause}
                self._events.publish(
                    "finding", rule=finding.rule, key=key, change=change, **words
                )
