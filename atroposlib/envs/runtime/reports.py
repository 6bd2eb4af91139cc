"""Reports of an environment to the rollout API: dropped groups, and numbers of each step.

    filter, sender --drop()-> counts, a sample per reason ----.
    metrics --write()-------> numbers of the last step -------+-- with a heartbeat --> API

Nothing waits for a report. A report that does not arrive is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from atroposlib.client import AsyncRolloutClient
from atroposlib.envs.rollout.filters import NOT_A_GROUP, to_columns
from atroposlib.envs.rollout.groups import plain
from atroposlib.errors import InvalidGroup
from atroposlib.trackers import finite_numbers
from atroposlib.wire import DropReport, EnvIdentifier, StepReport

EVERY_S = 10.0  # pause between two reports of a reason
MAX_SAMPLE_BYTES = 2**20


class Reports:
    """Pending reports; also a sink of metrics."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: Counter[str] = Counter()  # keys: reasons; since the last report
        self._samples: dict[str, Mapping[str, Any]] = {}  # first group of each reason
        self._due: dict[str, float] = {}
        self._step: tuple[int, Mapping[str, Any]] | None = None

    def drop(self, reason: str, group: Mapping[str, Any] | None) -> None:
        """Count a dropped group."""
        self._counts[reason] += 1
        if group is not None:
            self._samples.setdefault(reason, group)

    def write(self, metrics: Mapping[str, Any], step: int) -> None:
        """Keep the numbers of a step until the next heartbeat."""
        self._step = step, metrics

    def close(self) -> None:
        """Do nothing: this sink has no open file."""

    async def send(self, client: AsyncRolloutClient, who: EnvIdentifier) -> None:
        """Send the due reports; best effort. The first failure ends the call: heartbeats go on."""
        now, named = self._clock(), who.model_dump()
        for reason in [reason for reason in self._counts if self._due.get(reason, now) <= now]:
            self._due[reason] = now + EVERY_S
            report = DropReport(**named, reason=reason, count=self._counts.pop(reason))
            sample = await asyncio.to_thread(_pack_small, self._samples.pop(reason, None))
            if not await client.report_drops(report, sample):
                return
        if self._step is not None:
            (step, metrics), self._step = self._step, None
            numbers = finite_numbers({name: plain(value) for name, value in metrics.items()})
            await client.report_step(StepReport.of(numbers, role="env", step=step, **named))


def _pack_small(group: Mapping[str, Any] | None) -> bytes:
    """The group in binary form; empty without this form, or if too large."""
    from atroposlib.wire.binary import pack_columns  # numpy loads where it is used

    try:
        packed = b"" if group is None else pack_columns(to_columns(group))
    except (InvalidGroup, *NOT_A_GROUP):
        return b""
    return packed if len(packed) <= MAX_SAMPLE_BYTES else b""
