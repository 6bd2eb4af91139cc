"""The queue of a sweep: order, failures, a second start, stops, and GPUs, with stand-in runs."""

from __future__ import annotations

import json
import signal
import threading
import time

import pytest

from atroposlib.errors import ConfigError
from atroposlib.processes import Interrupted, StopRequest
from atroposlib.utils.command.folder_lock import FolderLock
from example_trainer.launch.sweep.queue import (
    QueueOptions,
    SweepQueue,
    device_parts,
    run_sweep,
)
from example_trainer.launch.sweep.runs import write_files
from tests.trainer.launch.sweep.sweeps import STAND_IN, SWEEP, sweep

NAMES = [f"lr={lr},seed={seed}" for lr in ("1e-05", "2e-05") for seed in range(3)]


@pytest.fixture
def queue(tmp_path):
    """Start a sweep, in which runs behave as named; its status and the names of the starts."""

    def start(devices=((),), stop=None, **options):
        base, runs = sweep(tmp_path, SWEEP)
        write_files(base, runs)
        given = QueueOptions(launcher=STAND_IN, jobs=len(devices), live=False, **options)
        before = len(starts(tmp_path))
        status = SweepQueue(base, runs, given, devices).run(stop or StopRequest())
        return status, starts(tmp_path)[before:]

    return start


@pytest.fixture
def behave(tmp_path):
    def write(**runs):
        by_name = {NAMES[int(key.removeprefix("run"))]: what for key, what in runs.items()}
        (tmp_path / "behaviour.json").write_text(json.dumps(by_name))

    return write


def starts(root):
    file = root / "starts"
    return file.read_text().splitlines() if file.exists() else []


def test_runs_go_one_after_the_other_and_done_ones_are_left_alone(queue, capfd):
    assert queue() == (0, [f"{name} -" for name in NAMES])
    printed = capfd.readouterr().out
    assert "lr=2e-05,seed=2: done, step 1/4, reward 0.500" in printed
    assert printed.rstrip().splitlines()[-1].startswith("compare: atropos ui ")
    assert queue() == (0, [])
    assert "6 runs in" in (again := capfd.readouterr().out) and ": 6 done" in again


def test_a_failed_run_leaves_the_others_alone_and_is_started_once_more(queue, behave, capfd):
    behave(run1="fail", run3="exit")
    status, started = queue()
    assert (status, len(started)) == (1, 6)
    printed = capfd.readouterr().out
    assert f"{NAMES[1]}: failed, step 1/4, reward 0.500, 0:00; no memory" in printed
    assert f"{NAMES[3]}: failed" in printed and "exit code 0; log: " in printed
    assert queue(skip_failed=True) == (1, [f"{NAMES[3]} -"])
    assert f"{NAMES[1]} failed (no memory): skipped" in capfd.readouterr().out
    behave()
    assert queue() == (0, [f"{NAMES[1]} -", f"{NAMES[3]} -"])
    assert f"{NAMES[1]} failed (no memory): started once more" in capfd.readouterr().out


def test_ctrl_c_ends_the_runs_in_order_and_the_same_command_goes_on(
    queue, behave, tmp_path, capfd
):
    behave(run2="sleep")

    stop = StopRequest()

    def interrupt():
        while not (tmp_path / NAMES[2] / "sleeps").exists():
            time.sleep(0.01)
        stop.signal_number = signal.SIGINT

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted):
        queue(stop=stop)
    thread.join()
    printed = capfd.readouterr().out
    assert f"stopping {NAMES[2]}; the same command goes on" in printed
    outcome = json.loads((tmp_path / NAMES[2] / "launch/outcome.json").read_text())
    assert outcome["state"] == "stopped"
    behave()
    assert queue() == (0, [f"{name} -" for name in NAMES[2:]])
    assert f"{NAMES[2]}: goes on (3 of 6)" in capfd.readouterr().out


def test_runs_side_by_side_have_their_own_gpus(queue):
    status, started = queue(devices=[("0", "1"), ("2", "3")])
    assert status == 0 and {line.split()[1] for line in started} == {"0,1", "2,3"}
    assert sorted(line.split()[0] for line in started) == NAMES


@pytest.mark.parametrize(
    "visible, jobs, parts",
    [
        ((), 2, [(), ()]),
        (("0", "1", "2"), 1, [("0", "1", "2")]),
        (("0", "1", "2", "3", "4"), 2, [("0", "1"), ("2", "3")]),
    ],
)
def test_gpus_are_shared_out_evenly(visible, jobs, parts):
    assert device_parts(visible, jobs) == parts


def test_more_runs_than_gpus_are_refused():
    with pytest.raises(ConfigError, match="--jobs 2 needs a GPU for each run: 1 are visible"):
        device_parts(("0",), 2)


def test_a_sweep_is_checked_before_its_first_process(tmp_path):
    base, runs = sweep(tmp_path, SWEEP, "model_name=/no/such", "inference.engine=local")
    with pytest.raises(ConfigError, match="no directory /no/such"):
        run_sweep(base, runs, QueueOptions(launcher=STAND_IN))
    assert starts(tmp_path) == [] and not (tmp_path / "sweep.yaml").exists()


def test_a_second_launch_into_the_folder_is_refused(tmp_path):
    base, runs = sweep(tmp_path, SWEEP)
    with (
        FolderLock(tmp_path, "wait"),
        pytest.raises(ConfigError, match="is in use by process"),
    ):
        run_sweep(base, runs, QueueOptions(launcher=STAND_IN))
