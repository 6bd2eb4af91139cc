from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from atroposlib.processes import (
    Children,
    Exit,
    Interrupted,
    RunFailed,
    StopRequest,
    answers,
    free_port,
    log_tail,
)
from atroposlib.text.lines import since_last_start

REPO = Path(__file__).resolve().parents[2]
ABSENT = "http://127.0.0.1:9/health"  # no server listens on the discard port
SLEEPER = "import time; time.sleep(600)"


def is_alive(pid):
    """Whether a process runs; an unreaped zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_until(condition, within_s=300.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def first_line_of(log):
    wait_until(lambda: log.exists() and "\n" in since_last_start(log.read_text()))
    return since_last_start(log.read_text()).splitlines()[0]


def test_a_child_is_ready_when_its_health_url_answers(children, server_spec):
    spec = server_spec("api", free_port())
    children.start(spec)
    children.wait_ready(["api"])
    assert answers(spec.health_url)


def test_leaving_the_context_ends_every_child(tmp_path, server_spec):
    with Children(tmp_path / "logs") as children:
        one = children.start(server_spec("one", free_port()))
        two = children.start(server_spec("two", free_port()))
    assert one.exit() is not None
    assert two.exit() is not None


def test_the_children_of_a_child_end_with_it(tmp_path, spec):
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(600)"
    )
    with Children(tmp_path / "logs") as children:
        child = children.start(spec("parent", code))
        grandchild = int(first_line_of(child.log))
        assert is_alive(grandchild)
    wait_until(lambda: not is_alive(grandchild))


def test_a_child_that_ignores_sigterm_is_killed(tmp_path, spec):
    code = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)"
    )
    with Children(tmp_path / "logs") as children:
        child = children.start(spec("stubborn", code))
        first_line_of(child.log)
        children.end(["stubborn"], grace_s=0.1)
    assert child.exit() == Exit(-signal.SIGKILL)


def test_a_child_that_ends_before_it_is_ready_is_named_with_the_end_of_its_log(children, spec):
    children.start(
        spec("api", "print('the port is taken'); raise SystemExit(3)", health_url=ABSENT)
    )
    with pytest.raises(RunFailed) as failure:
        children.wait_ready(["api"])
    assert "api ended before it was ready (exit code 3)" in failure.value.line
    assert failure.value.tail == "the port is taken"


def test_a_child_that_never_answers_fails_the_run_after_its_bound(children, spec):
    printed = []
    children.start(spec("slow", SLEEPER, health_url=ABSENT, ready_within_s=0.3))
    with pytest.raises(RunFailed, match=f"slow did not answer at {ABSENT} within 0 s"):
        children.wait_ready(["slow"], printed.append)
    assert printed[0] == "waiting for slow: 0 of 0 s"


def test_a_missing_program_is_a_one_line_error(children, spec):
    missing = spec("engine", "")
    missing = type(missing)("engine", ("no-such-program",), {}, missing.cwd)
    with pytest.raises(RunFailed, match="engine: cannot start no-such-program"):
        children.start(missing)


def test_a_task_runs_to_its_end(children, spec):
    assert children.run_to_end(spec("task", "raise SystemExit(4)"), bound_s=300) == Exit(4)


def test_a_task_that_takes_too_long_is_ended(children, spec):
    with pytest.raises(RunFailed, match="task: not done after 0 s"):
        children.run_to_end(spec("task", SLEEPER), bound_s=0.2)


def test_a_stop_request_ends_a_wait(tmp_path, spec):
    stop = StopRequest(signal_number=signal.SIGINT)
    with Children(tmp_path / "logs", stop) as children, pytest.raises(Interrupted):
        children.run_to_end(spec("task", SLEEPER), bound_s=300)


@pytest.mark.parametrize(
    ("code", "words"),
    [(3, "exit code 3"), (-9, "signal SIGKILL"), (-15, "signal SIGTERM"), (-99, "signal 99")],
)
def test_an_exit_code_is_described_in_words(code, words):
    assert str(Exit(code)) == words


def test_the_tail_of_a_log_omits_lines_overwritten_by_a_progress_bar(tmp_path):
    log = tmp_path / "x.log"
    log.write_bytes(b"old\n\n 10%\r 50%\rdone\nlast\n")
    assert log_tail(log, 2) == "done\nlast"
    assert log_tail(tmp_path / "absent.log") == ""


LAUNCHER = """
    import sys, time
    from pathlib import Path
    from atroposlib.processes import *
    stop = StopRequest(); stop.listen()
    try:
        with Children(Path(sys.argv[1]), stop) as children:
            for name in ("one", "two"):
                spec = ProcessSpec(name, (sys.executable, "-c", sys.argv[2]), {}, Path("."))
                print(children.start(spec).popen.pid, flush=True)
            while True:
                stop.check()
                time.sleep(0.05)
    except Interrupted as interrupted:
        sys.exit(128 + interrupted.signal_number)
"""


@pytest.fixture
def launcher(tmp_path):
    """A launcher of two sleepers in a separate process, and their process ids."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LAUNCHER), str(tmp_path / "logs"), SLEEPER],
        cwd=REPO,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    yield process, [int(process.stdout.readline()) for _ in range(2)]
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_exactly_the_started_processes(launcher, number):
    process, pids = launcher
    bystander = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.DEVNULL)
    try:
        process.send_signal(number)
        assert process.wait(timeout=300) == 128 + number
        wait_until(lambda: not any(is_alive(pid) for pid in pids))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_killed_launcher_leaves_no_processes_running(launcher):
    process, pids = launcher
    process.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in pids))
