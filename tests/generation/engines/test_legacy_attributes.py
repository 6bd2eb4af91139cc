"""Attributes of a server that environments of the original use."""

from __future__ import annotations

from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.harness import ServerHarness
from atroposlib.generation.engines.health import HealthState


def test_former_names_are_views_of_the_slots_and_timings_of_both_splits() -> None:
    server = ServerHarness(
        APIServerConfig(num_max_requests_at_once=3, num_requests_for_eval=2)
    )
    assert (server.sem.max_val, server.eval_sem.max_val) == (3, 2)
    server.train_stats.record(0.5, attempts=2)
    server.eval_stats.record(0.25, attempts=1)
    assert (list(server.request_timings), list(server.attempts_list)) == ([0.5], [2])
    assert list(server.eval_request_timings) == [0.25]
    assert list(server.eval_attempts_list) == [1]


def test_setting_the_health_attribute_sets_the_state_of_the_monitor() -> None:
    server = ServerHarness()
    assert server.server_healthy and not server.initialized
    assert server.check_task is None
    server.server_healthy = False
    assert server.health.state is HealthState.DOWN and server.initialized
    server.server_healthy = True
    assert server.health.state is HealthState.HEALTHY
