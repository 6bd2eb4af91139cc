from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from example_trainer.state import Frequency


def fired(frequency: Frequency, steps: int, per_epoch: int = 8) -> list[int]:
    return [
        step
        for step in range(steps)
        if frequency.due(epoch_ended=(step + 1) % per_epoch == 0, now_s=0.0)
    ]


def test_epoch_and_step_counters_reset_independently():
    assert fired(Frequency(epochs=1, steps=5), 16) == [4, 7, 9, 14, 15]


def test_frequency_without_a_bound_never_fires():
    assert fired(Frequency(), 100) == []


def test_seconds_count_from_the_last_time_they_fired():
    frequency = Frequency(seconds=10.0, since_s=100.0)
    times = [105.0, 109.9, 110.0, 115.0, 119.9, 131.0, 140.9, 141.0]
    assert [now for now in times if frequency.due(False, now)] == [110.0, 131.0, 141.0]


def test_a_clock_that_is_set_back_delays_by_one_period_at_most():
    frequency = Frequency(seconds=10.0, since_s=100_000.0)
    assert [frequency.due(False, now) for now in (50.0, 59.0, 60.0)] == [False, False, True]


def test_steps_that_fire_leave_the_seconds_alone():
    frequency = Frequency(steps=2, seconds=10.0)
    assert [frequency.due(False, now) for now in (1.0, 2.0, 10.0, 11.0)] == [
        *(False, True, True, True)
    ]


def test_a_restored_frequency_fires_where_the_first_would_have():
    whole, before = Frequency(epochs=2, steps=3), Frequency(epochs=2, steps=3)
    expected = fired(whole, 40)
    assert fired(before, 8) == [step for step in expected if step < 8]
    after = Frequency(epochs=2, steps=3)
    after.restore(before.state())
    assert [8 + step for step in fired(after, 32)] == [step for step in expected if step >= 8]


def test_the_time_a_trainer_was_away_counts():
    frequency = Frequency(seconds=60.0, since_s=0.0)
    state = frequency.state()
    started_again = Frequency(seconds=60.0, since_s=1000.0)
    started_again.restore(state)
    assert started_again.due(False, now_s=1001.0)


def test_counters_of_another_kind_are_rejected():
    with pytest.raises(ConfigError, match="no counters"):
        Frequency().restore({"epoch": 1})
