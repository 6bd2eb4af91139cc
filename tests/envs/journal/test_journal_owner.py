"""Owner of a journal: its process by a lock or a lease, never a child that lives on."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from atroposlib.envs.journal import journal_owner
from atroposlib.envs.journal.journal_file import JournalFile
from atroposlib.envs.journal.journal_owner import LEASE_S, take_free_journals
from atroposlib.envs.journal.journal_records import RunStarted
from tests.serving import WAIT_S

MB = 2**20
PARENT = """
import multiprocessing, sys, time
from pathlib import Path
from atroposlib.envs.journal.journal_file import JournalFile
from atroposlib.envs.journal.journal_records import RunStarted
file = JournalFile(Path(sys.argv[1]), limit_bytes=10**6)
file.open([RunStarted("r")])
pool = multiprocessing.get_context("fork").Pool(1)
print(pool.apply(__import__("os").getpid), flush=True)
time.sleep(600)
"""


@pytest.fixture
def no_locks(monkeypatch):
    """A file system without locks, such as Lustre without the option flock."""

    def refuse(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(journal_owner.fcntl, "flock", refuse)


def write_journal(folder, name="math-0a"):
    file = JournalFile(folder / f"{name}.journal", limit_bytes=MB)
    file.open([RunStarted("r")])
    return file


def age(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_child_that_outlives_its_killed_parent_keeps_no_journal(tmp_path):
    path = tmp_path / "math-0a.journal"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(path)], stdout=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    try:
        assert take_free_journals(tmp_path, "math").files == []
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(WAIT_S)
        os.kill(child, 0)  # it lives
        free = take_free_journals(tmp_path, "math")
        assert [state.run_id for state in free.states] == ["r"]
        free.release()
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_without_locks_a_lease_that_ended_is_taken_by_exactly_one(no_locks, tmp_path):
    file = write_journal(tmp_path)
    file.close()
    age(file.path, 2 * LEASE_S)

    def take(_):
        free = take_free_journals(tmp_path, "math")
        number = len(free.files)
        free.delete()
        return number

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(take, range(4))) == 1
    assert [*tmp_path.iterdir()] == []


def test_without_locks_a_process_that_lives_keeps_its_journal(no_locks, tmp_path, monkeypatch):
    monkeypatch.setattr("atroposlib.envs.journal.journal_file.RENEW_S", 0.05)
    file = write_journal(tmp_path)
    free = take_free_journals(tmp_path, "math")
    assert free.files == [] and file.path.exists()
    file.close()


def test_a_journal_whose_taker_died_is_found_again(no_locks, tmp_path):
    file = write_journal(tmp_path)
    file.close()
    age(file.path, 2 * LEASE_S)
    free = take_free_journals(tmp_path, "math")
    [(path, _)] = free.files
    free.release()  # as the end of the process does
    age(path, 2 * LEASE_S)
    again = take_free_journals(tmp_path, "math")
    assert [state.run_id for state in again.states] == ["r"]
    again.delete()
    assert [*tmp_path.iterdir()] == []
