"""The success band."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from atroposlib.envs.curriculum.gates import SuccessBand
from atroposlib.errors import ConfigError
from tests.envs.curriculum.conftest import group, rows
from tests.envs.toys import ToyConfig, toy_env


def test_a_band_admits_success_within_its_bounds():
    [task] = rows(1)
    gate = SuccessBand()
    half = [1.0] * 5
    admitted = [
        gate.admit(group(task, *half[:ones], *[0.0] * (5 - ones))) for ones in range(6)
    ]
    assert admitted == [False, True, True, True, True, False]  # 0.2 and 0.8 are within
    assert not gate.admit(group(task))
    assert gate.reason == "success outside of 0.2 to 0.8"


def test_bounds_out_of_order_are_refused():
    with pytest.raises(ConfigError, match="in order"):
        SuccessBand(low=0.9, high=0.1)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), min_size=4, max_size=4), max_size=6))
async def test_each_group_is_sent_or_counted_once_with_the_first_reason_that_holds(groups):
    """Scores are quarters; the band is 0.25 to 0.75, so that no rounding decides."""
    band = {"gate": {"name": "band", "low": 0.25, "high": 0.75}}
    config = ToyConfig(use_wandb=False, group_size=4, curriculum=band)
    env = toy_env(config, "http://127.0.0.1:9/v1")
    made = [
        {"tokens": [[5, 6]] * 4, "masks": [[-100, 6]] * 4, "scores": [n / 4 for n in quarters]}
        for quarters in groups
    ]
    kept = await env.handle_send_to_api(made, "item", do_send_to_api=False)
    await env.close()
    equal = [quarters for quarters in groups if len(set(quarters)) == 1]
    within = [q for q in groups if q not in equal and 4 <= sum(q) <= 12]
    assert [group["scores"] for group in kept] == [[n / 4 for n in q] for q in within]
    dropped = env._atropos.group_stats.by_reason()
    assert dropped.get("dropped_same_scores", 0) == len(equal)
    assert dropped.get("dropped_gate", 0) == len(groups) - len(equal) - len(within)
