from __future__ import annotations

import os
import signal

import pytest

from atroposlib.processes import RunFailed
from atroposlib.quickstart.supervisor import LOST_AFTER_S, Supervisor


class Scene:
    """Two real children and a hand-set sign of life."""

    def __init__(self, children, spec):
        self.said = []
        self.back = True
        sleep = "import time; time.sleep(600)"
        self.api = children.start(spec("api", sleep, restartable=True))
        self.trainer = children.start(spec("trainer", sleep))
        self.supervisor = Supervisor(
            [self.api, self.trainer], {"api": lambda _since: self.back}, 60.0, self.said.append
        )

    def kill(self, child):
        self.supervisor.check(0.0)  # everybody has been seen alive
        self.back = False
        os.kill(child.popen.pid, signal.SIGKILL)
        child.popen.wait()


@pytest.fixture
def scene(children, spec):
    return Scene(children, spec)


def test_nothing_is_said_while_everybody_lives(scene):
    scene.supervisor.check(0.0)
    assert scene.said == []


def test_the_death_of_the_trainer_stops_the_run(scene):
    scene.kill(scene.trainer)
    with pytest.raises(RunFailed, match=r"trainer died \(signal SIGKILL\); the run stops"):
        scene.supervisor.check(0.0)


def test_a_dead_api_is_named_with_the_command_that_restarts_it(scene):
    scene.kill(scene.api)
    scene.supervisor.check(100.0)
    assert scene.said[-2].startswith("api died (signal SIGKILL); restart it within 60 s")
    assert scene.said[-1] == scene.api.spec.shell_line()
    assert scene.supervisor.missing() == ["api"]


def test_the_run_goes_on_when_the_api_is_back_in_time(scene):
    scene.kill(scene.api)
    scene.supervisor.check(100.0)
    scene.back = True
    scene.supervisor.check(112.0)
    assert scene.said[-1] == "api is back after 12 s: the run goes on"
    assert scene.supervisor.missing() == []
    assert scene.supervisor.by_hand(113.0) == ["api"]
    assert scene.supervisor.restarts == ["api"]


def test_the_run_stops_when_nobody_restarts_it(scene):
    scene.kill(scene.api)
    scene.supervisor.check(100.0)
    scene.supervisor.check(160.0)
    with pytest.raises(RunFailed, match="api was not restarted within 60 s"):
        scene.supervisor.check(160.1)


def test_an_environment_that_cannot_even_start_is_not_waited_for(children, spec):
    env = children.start(spec("environment", "raise SystemExit(2)", restartable=True))
    env.popen.wait()
    supervisor = Supervisor([env], {"environment": lambda _since: False}, 60.0, print)
    with pytest.raises(
        RunFailed, match=r"environment ended before it was ready \(exit code 2\)"
    ):
        supervisor.check(0.0)


def test_a_restarted_api_may_die_again(scene):
    scene.kill(scene.api)
    scene.supervisor.check(0.0)
    scene.back = True
    scene.supervisor.check(10.0)
    scene.back = False
    scene.supervisor.check(10.0 + LOST_AFTER_S)
    assert scene.supervisor.missing() == []
    scene.supervisor.check(10.1 + LOST_AFTER_S)
    assert scene.supervisor.missing() == ["api"]


def test_a_process_that_is_done_is_not_missed(children, spec):
    trainer = children.start(spec("trainer", ""))
    trainer.popen.wait()
    supervisor = Supervisor([trainer], {}, 60.0, print)
    supervisor.check(0.0, frozenset({"trainer"}))
    with pytest.raises(RunFailed, match=r"trainer died \(exit code 0\)"):
        supervisor.check(0.0)
