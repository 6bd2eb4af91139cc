"""Attributes of a server that environments written for the original read and set."""

from __future__ import annotations

import asyncio
from collections import deque

from atroposlib.generation.engines.health import HealthState, HealthWatch, OwnCheck
from atroposlib.generation.engines.slots import AsyncSemWithAdaptiveWeight, Lane


class ServerAttributes:
    """Views of the lanes and of the health under their old names."""

    train_lane: Lane
    eval_lane: Lane
    health: HealthWatch
    _own_check: OwnCheck

    @property
    def sem(self) -> AsyncSemWithAdaptiveWeight:
        return self.train_lane.slots

    @property
    def eval_sem(self) -> AsyncSemWithAdaptiveWeight:
        return self.eval_lane.slots

    @property
    def server_healthy(self) -> bool:
        return self.health.state is not HealthState.DOWN

    @server_healthy.setter
    def server_healthy(self, healthy: bool) -> None:
        self._own_check.reported = healthy
        self.health.report(healthy)

    @property
    def initialized(self) -> bool:
        return self.health.state is not HealthState.UNKNOWN

    @property
    def check_task(self) -> asyncio.Future[bool | None] | None:
        return self._own_check.task

    @property
    def attempts_list(self) -> deque[int]:
        return self.train_lane.attempts

    @property
    def request_timings(self) -> deque[float]:
        return self.train_lane.timings_s

    @property
    def eval_attempts_list(self) -> deque[int]:
        return self.eval_lane.attempts

    @property
    def eval_request_timings(self) -> deque[float]:
        return self.eval_lane.timings_s
