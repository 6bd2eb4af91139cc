"""Server attributes that environments written for the original read and set."""

from __future__ import annotations

import asyncio
from collections import deque

from atroposlib.generation.engines.health import CustomHealthCheck, HealthMonitor, HealthState
from atroposlib.generation.engines.slots import AsyncSemWithAdaptiveWeight, SplitStats


class LegacyServerAttributes:
    """Views of slots, timings and health under the names of the original."""

    train_stats: SplitStats
    eval_stats: SplitStats
    health: HealthMonitor
    _custom_check: CustomHealthCheck

    @property
    def sem(self) -> AsyncSemWithAdaptiveWeight:
        return self.train_stats.slots

    @property
    def eval_sem(self) -> AsyncSemWithAdaptiveWeight:
        return self.eval_stats.slots

    @property
    def server_healthy(self) -> bool:
        return self.health.state is not HealthState.DOWN

    @server_healthy.setter
    def server_healthy(self, healthy: bool) -> None:
        self._custom_check.reported = healthy
        self.health.report(healthy)

    @property
    def initialized(self) -> bool:
        return self.health.state is not HealthState.UNKNOWN

    @property
    def check_task(self) -> asyncio.Future[bool | None] | None:
        return self._custom_check.task

    @property
    def attempts_list(self) -> deque[int]:
        return self.train_stats.attempts

    @property
    def request_timings(self) -> deque[float]:
        return self.train_stats.timings_s

    @property
    def eval_attempts_list(self) -> deque[int]:
        return self.eval_stats.attempts

    @property
    def eval_request_timings(self) -> deque[float]:
        return self.eval_stats.timings_s
