"""Diagnosis of the run by the rules of ``atroposlib.doctor``, over looks at this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from time import monotonic
from typing import Any

from anyio.to_thread import run_sync as in_thread

from atroposlib.api.run.events import Events
from atroposlib.api.run.metrics import Metrics
from atroposlib.doctor.diagnosis import answer, diagnose, moving
from atroposlib.doctor.evidence import Evidence, Finding, Look, samples
from atroposlib.wire import RunStatus

APART_S = 2.0  # between two looks
COMPARED_S = 10.0  # an older look shows no present progress


class Doctor:
    """The two latest looks, at least ``APART_S`` apart. A call changes nothing of the run."""

    def __init__(
        self,
        status: Callable[[], Awaitable[RunStatus]],
        metrics: Metrics,
        events: Events,
        clock: Callable[[], float],
    ) -> None:
        self._status, self._metrics = status, metrics
        self._events, self._clock = events, clock
        self._looked_at = 0.0  # monotonic
        self._turn = asyncio.Lock()
        self._latest: Look | None = None
        self._known: dict[str, Finding] = {}
        self._answer = answer((), None)

    async def diagnosis(self) -> dict[str, Any]:
        """The body of GET /explore/why. The first call in a while takes ``APART_S``."""
        async with self._turn:
            before = self._latest
            if before is None or monotonic() - self._looked_at > COMPARED_S:
                before = self._latest = await self._look()
                await asyncio.sleep(APART_S)
            if monotonic() - self._looked_at >= APART_S:
                self._latest = await self._look()
                self._report(Evidence("this API", before, self._latest))
            return self._answer

    async def _look(self) -> Look:
        self._looked_at = monotonic()
        status = await self._status()
        page = await in_thread(self._metrics.exposition, status)
        known = await in_thread(samples, page.decode())
        return Look(self._clock(), status.model_dump(mode="json"), metrics=known)

    def _report(self, evidence: Evidence) -> None:
        """Publish an event for each finding that began or ended."""
        findings = {finding.key: finding for finding in diagnose(evidence)}
        for key in findings.keys() & self._known.keys():  # time of its beginning
            findings[key] = replace(findings[key], at=self._known[key].at)
        for change, here, there in (
            ("began", findings, self._known),
            ("ended", self._known, findings),
        ):
            for key in here.keys() - there.keys():
                finding = here[key]
                words: dict[str, Any] = {"severity": finding.severity, "cause": finding.cause}
                self._events.publish(
                    "finding", rule=finding.rule, key=key, change=change, **words
                )
        self._known = findings
        self._answer = answer(findings.values(), moving(evidence))
