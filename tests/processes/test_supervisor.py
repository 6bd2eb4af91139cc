from __future__ import annotations

import os
import signal

import pytest

from atroposlib.processes import (
    Interrupted,
    RestartByHand,
    RunFailed,
    StopRequest,
    Supervisor,
    free_port,
)
from atroposlib.processes.supervisor import LOST_AFTER_S

SLEEPER = "import time; time.sleep(600)"


def supervise(children, specs, rule=None, **arguments):
    """A supervisor whose processes are started, and the lines it prints."""
    printed: list[str] = []
    run = Supervisor(
        specs, children, StopRequest(), rule, print_line=printed.append, **arguments
    )
    run.start_servers()
    run.start_workers()
    return run, printed


def test_servers_are_ready_before_the_other_processes_start(children, spec, server_spec):
    worker = spec("worker", SLEEPER)
    run = Supervisor([worker, server_spec("api", free_port())], children, StopRequest())
    run.start_servers()
    assert children["api"].exit() is None
    with pytest.raises(KeyError):
        children["worker"]
    run.start_workers()
    assert children["worker"].exit() is None


def test_a_process_that_is_named_early_starts_beside_the_servers_and_once(children, spec):
    run = Supervisor([spec("worker", SLEEPER), spec("late", SLEEPER)], children, StopRequest())
    run.start_servers(early=["worker"])
    pid = children["worker"].popen.pid
    run.start_workers(["worker"])
    assert children["worker"].popen.pid == pid and children["late"].exit() is None


def test_watching_ends_when_the_run_is_done(children, spec):
    run, printed = supervise(
        children,
        [spec("other", ""), spec("trainer", "import time; time.sleep(0.5)")],
        may_end=lambda: {"trainer", "other"},
    )
    looks = []
    run.watch(lambda: run.has_completed("trainer"), observe=lambda: looks.append(1))
    assert run.has_completed("trainer") and looks
    assert printed in ([], ["other is done"])


def test_a_process_that_is_done_is_reported_once_and_is_no_incident(children, spec):
    incidents: list[str] = []
    run, printed = supervise(
        children,
        [spec("env", "")],
        may_end=lambda: {"env"},
        print_incident=incidents.append,
    )
    children["env"].popen.wait()
    run.look(0.0)
    run.look(1.0)
    assert printed == ["env is done"] and incidents == []


def test_the_end_of_a_process_without_a_rule_fails_the_run(children, spec):
    run, _ = supervise(children, [spec("env", "print('why'); raise SystemExit(3)")])
    children["env"].popen.wait()
    with pytest.raises(
        RunFailed, match=r"env died \(exit code 3\); log: .*env.log"
    ) as failure:
        run.watch(lambda: False)
    assert failure.value.tail == "why"


def test_a_watch_has_a_time_limit_and_its_error_names_the_process(children, spec):
    run, _ = supervise(children, [spec("trainer", SLEEPER)])
    with pytest.raises(RunFailed, match="the trainer: not done within 0 s"):
        run.watch(lambda: False, what="the trainer", within_s=0.0)


def test_a_stop_request_ends_a_watch_and_the_pause_before_a_restart(children, spec):
    stop = StopRequest()
    run = Supervisor([spec("trainer", SLEEPER)], children, stop)
    run.start_workers()
    stop.signal_number = signal.SIGTERM
    with pytest.raises(Interrupted):
        run.watch(lambda: False)
    with pytest.raises(Interrupted):
        run.restart(["trainer"], pause_s=60.0, grace_s=1.0)


def test_a_restarted_server_answers_before_the_next_process_starts(
    children, spec, server_spec
):
    run, _ = supervise(children, [server_spec("api", free_port()), spec("trainer", SLEEPER)])
    before = [children[name].popen.pid for name in run.specs]
    run.restart(["api", "trainer"], pause_s=0.0, grace_s=5.0)
    after = [children[name].popen.pid for name in run.specs]
    assert not set(before) & set(after)
    assert all(children[name].exit() is None for name in run.specs)


# --- RestartByHand ----------------------------------------------------------------------


class Scene:
    """Two real children and a sign of life set by the test."""

    def __init__(self, children, spec):
        self.back = True
        self.rule = RestartByHand({"api": lambda _since: self.back}, 60.0)
        specs = [spec("api", SLEEPER, restartable=True), spec("trainer", SLEEPER)]
        self.run, self.printed = supervise(children, specs, self.rule)
        self.api, self.trainer = children["api"], children["trainer"]

    def kill(self, child):
        self.run.look(0.0)  # both gave a sign of life
        self.back = False
        os.kill(child.popen.pid, signal.SIGKILL)
        child.popen.wait()


@pytest.fixture
def scene(children, spec):
    return Scene(children, spec)


def test_nothing_is_printed_while_all_processes_live(scene):
    scene.run.look(0.0)
    assert scene.printed == []


def test_the_death_of_the_trainer_stops_the_run(scene):
    scene.kill(scene.trainer)
    with pytest.raises(RunFailed, match=r"trainer died \(signal SIGKILL\); the run stops"):
        scene.run.look(0.0)


def test_the_message_about_a_dead_api_contains_the_restart_command(scene):
    scene.kill(scene.api)
    scene.run.look(100.0)
    assert scene.printed[-2].startswith("api died (signal SIGKILL); restart it within 60 s")
    assert scene.printed[-1] == scene.api.spec.shell_line()
    assert scene.rule.missing() == ["api"]


def test_the_run_continues_when_the_api_restarts_in_time(scene):
    scene.kill(scene.api)
    scene.run.look(100.0)
    scene.back = True
    scene.run.look(112.0)
    assert scene.printed[-1] == "api is back after 12 s: the run goes on"
    assert scene.rule.missing() == []
    assert scene.rule.by_hand(113.0) == ["api"]


def test_the_run_stops_when_the_grace_period_is_over(scene):
    scene.kill(scene.api)
    scene.run.look(100.0)
    scene.run.look(160.0)
    with pytest.raises(RunFailed, match="api was not restarted within 60 s"):
        scene.run.look(160.1)


def test_an_environment_that_cannot_start_is_not_waited_for(children, spec):
    rule = RestartByHand({"environment": lambda _since: False}, 60.0)
    specs = [spec("environment", "raise SystemExit(2)", restartable=True)]
    run, _ = supervise(children, specs, rule)
    children["environment"].popen.wait()
    with pytest.raises(
        RunFailed, match=r"environment ended before it was ready \(exit code 2\)"
    ):
        run.look(0.0)


def test_a_restarted_api_may_die_again(scene):
    scene.kill(scene.api)
    scene.run.look(0.0)
    scene.back = True
    scene.run.look(10.0)
    scene.back = False
    scene.run.look(10.0 + LOST_AFTER_S)
    assert scene.rule.missing() == []
    scene.run.look(10.1 + LOST_AFTER_S)
    assert scene.rule.missing() == ["api"]


def test_exit_code_0_of_a_process_that_must_not_end_counts_as_a_failure(children, spec):
    may_end = {"trainer"}
    rule = RestartByHand({}, 60.0)
    run, _ = supervise(children, [spec("trainer", "")], rule, may_end=lambda: may_end)
    children["trainer"].popen.wait()
    run.look(0.0)
    may_end.clear()
    with pytest.raises(RunFailed, match=r"trainer died \(exit code 0\)"):
        run.look(0.0)
