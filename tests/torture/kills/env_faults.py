"""One environment through every outage: what it finished is trained on, once, and it stays.

API killed, reset, answering 503, not there yet; inference server killed; the environment
itself stopped by signals and killed. The environment's file of groups lists what it finished,
the trainer's list and the queue's file what became of it.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass

from tests.serving import served
from tests.torture.figures import Figures, fast_folder
from tests.torture.kills.env_world import World, until


@dataclass(frozen=True)
class Durations:
    """How long each outage lasts, in seconds."""

    api_blip: float = 0.5
    api_away: float = 20.0
    api_503: float = 60.0
    api_absent: float = 10.0
    inference_away: float = 30.0

    def scaled(self, share: float) -> Durations:
        return Durations(**{name: share * value for name, value in vars(self).items()})


def environment_campaign(rounds: int, durations: Durations = Durations()) -> Figures:
    """Raises AssertionError at the first broken promise; otherwise the figures."""
    with fast_folder() as folder:
        world = World(folder)
        with served(world.gateway.app) as url:
            world.point_environment_at(url)
            try:
                return _lives(world, rounds, durations)
            finally:
                world.close()


def _lives(world: World, rounds: int, durations: Durations) -> Figures:
    figures = Figures()
    world.inference.start()
    until("the inference server", world.inference_answers)
    world.env.start()  # before there is an API
    time.sleep(durations.api_absent)
    assert not world.env.exited, "the environment left because the API was absent"
    world.api.start()
    world.trainer.start()
    figures["s to the first batch after an absent API"] = world.next_batches(1)
    for _ in range(rounds):
        for name, fault in FAULTS.items():
            seconds = fault(world, durations)
            label = f"s to recover, {name}"
            figures[label] = max(seconds, figures.get(label, 0.0))
            assert not world.env.exited, f"the environment left after: {name}"
            world.next_batches()
    assert world.env.end(signal.SIGTERM) == 0
    world.trainer.drain()
    world.api.kill()
    return audit(world, figures)


def _recovered(world: World) -> float:
    return world.next_batches(1)


def api_killed(seconds: float, world: World) -> float:
    world.api.kill()
    time.sleep(seconds)
    world.api.start()
    return _recovered(world)


def api_reset(world: World, durations: Durations) -> float:
    world.reset()
    return _recovered(world)


def api_answers_503(world: World, durations: Durations) -> float:
    before = world.gateway.refused
    world.gateway.refuses = True
    time.sleep(durations.api_503)
    until("a refused call", lambda: world.gateway.refused > before)
    world.gateway.refuses = False
    return _recovered(world)


def inference_killed(world: World, durations: Durations) -> float:
    world.inference.kill()
    time.sleep(durations.inference_away)
    world.inference.start()
    until("the inference server", world.inference_answers)
    return _recovered(world)


def environment_asked(number: signal.Signals, world: World) -> float:
    assert world.env.end(number) == 0, f"{number.name} did not end the environment with 0"
    left = set(world.finished()) - world.acknowledged() - world.wiped - set(world.trainer.got)
    assert len(left) <= world.counted("train/dropped_run_ended"), f"not sent on exit: {left}"
    world.env.start()
    return _recovered(world)


def environment_killed(world: World, durations: Durations) -> float:
    world.env.kill()
    until("the answers to its posts", lambda: not world.gateway.passing)
    known = world.acknowledged() | world.wiped | set(world.trainer.got)
    world.unsent_at_kill |= set(world.finished()) - known
    world.env.start()
    return _recovered(world)


FAULTS = {
    "API killed, back at once": lambda w, d: api_killed(d.api_blip, w),
    "API killed, away": lambda w, d: api_killed(d.api_away, w),
    "API answers 503": api_answers_503,
    "reset": api_reset,
    "inference server killed": inference_killed,
    "SIGTERM": lambda w, d: environment_asked(signal.SIGTERM, w),
    "SIGINT": lambda w, d: environment_asked(signal.SIGINT, w),
    "kill -9 of the environment": environment_killed,
}


def audit(world: World, figures: Figures) -> Figures:
    finished, got = world.finished(), Counter(world.trainer.got)
    void = world.counted("train/dropped_run_ended")
    kept = world.acknowledged() | world.wiped | got.keys()
    lost = set(finished) - kept
    found = Figures()
    found["groups finished"] = len(finished)
    found["groups trained"] = len(got)
    found["lost"] = max(0, len(lost) - void)
    found["trained twice"] = sum(count - 1 for count in got.values())
    found["finished twice"] = len(finished) - len(set(finished))
    found["ghosts"] = len(got.keys() - set(finished))
    found["void: of a run that was reset"] = len(lost) + len(world.wiped - got.keys())
    found["unsent at kill -9, sent by the next life"] = len(world.unsent_at_kill - lost)
    found.update(figures)
    for name in ("lost", "trained twice", "finished twice", "ghosts"):
        assert found[name] == 0, found.line("environment")
    return found
