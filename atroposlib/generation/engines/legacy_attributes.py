"""Server attributes that environments written for the original read and set."""

from __future__ import annotations

import asyncio

from atroposlib.generation.configs import ServerBaseline
from atroposlib.generation.engines.health import CustomHealthCheck, HealthMonitor, HealthState
from atroposlib.generation.engines.slots import SplitStats


class LegacyServerAttributes:
    """Slots, timings and health, also under the names of the original."""

    health: HealthMonitor
    _custom_check: CustomHealthCheck

    def __init__(self, config: ServerBaseline) -> None:
        remembered = config.rolling_buffer_length
        train = self.train_stats = SplitStats(config.num_max_requests_at_once, remembered)
        evaluation = self.eval_stats = SplitStats(config.num_requests_for_eval, remembered)
        self.sem, self.eval_sem = train.slots, evaluation.slots
        self.attempts_list, self.request_timings = train.attempts, train.timings_s
        self.eval_attempts_list = evaluation.attempts
        self.eval_request_timings = evaluation.timings_s

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
