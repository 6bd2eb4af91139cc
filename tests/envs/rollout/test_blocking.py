from __future__ import annotations

import logging

import pytest

from atroposlib.envs.curriculum.curriculum import Curriculum
from atroposlib.envs.curriculum.interface import Task
from atroposlib.envs.rollout.blocking import BLOCKED_S, BlockingCalls
from atroposlib.envs.settings.config import BaseEnvConfig


class Clock:
    """Seconds that a call adds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_slow_call_is_logged_once_by_name_with_its_seconds(caplog) -> None:
    clock = Clock()
    calls = BlockingCalls("sums", clock)
    with caplog.at_level(logging.WARNING):
        for took_s in (BLOCKED_S, 3.2, 2.0):
            with calls.watch("sampler.next"):
                clock.now += took_s
        with pytest.raises(KeyError), calls.watch("sampler.observe"):
            clock.now += 4.0
            raise KeyError
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("sums: sampler.next took 3.2 s, and every rollout of this process")
    assert second.startswith("sums: sampler.observe took 4.0 s")
    assert calls.metrics() == {"blocked_s": pytest.approx(9.2)}
    assert calls.metrics() == {}


def test_the_draws_of_a_curriculum_are_measured() -> None:
    config = BaseEnvConfig(curriculum={"sampler": {"name": "uniform"}})
    curriculum = Curriculum(config, "sums")
    curriculum.choose_from([Task("a", number=0)])
    clock = Clock()
    curriculum.calls = BlockingCalls("sums", clock)
    sampler = curriculum.sampler
    assert sampler is not None
    draw = sampler.draw

    def slow_draw() -> Task | None:
        clock.now += 2.0
        return draw()

    sampler.draw = slow_draw  # type: ignore[method-assign]
    assert curriculum.task_at(0) is not None
    assert curriculum.calls.metrics() == {"blocked_s": 2.0}
