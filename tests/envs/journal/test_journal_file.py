"""File of a journal: what is written is there, one process holds it, it stays small."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from atroposlib.envs.journal import journal_file
from atroposlib.envs.journal.journal_file import JournalFile
from atroposlib.envs.journal.journal_owner import take_free_journals
from atroposlib.envs.journal.journal_records import (
    RolloutBegun,
    RolloutEnded,
    RunStarted,
    SampleFinished,
)
from tests.serving import WAIT_S

MB = 2**20


@pytest.fixture
def journal(tmp_path):
    file = JournalFile(tmp_path / "math-0a.journal", limit_bytes=8 * MB)
    file.open([RunStarted("r")])
    yield file
    file.close()


def states_of(folder, name="math"):
    free = take_free_journals(folder, name)
    free.release()
    return free.states


def test_what_was_written_is_read_by_the_next_process(tmp_path):
    file = JournalFile(tmp_path / "math-0a.journal", limit_bytes=MB)
    file.open([RunStarted("r")])
    file.write(RolloutBegun("a", "t", 3))
    file.write(SampleFinished("a", b"x"))
    file.close()
    (state,) = states_of(tmp_path)
    assert state.run_id == "r"
    assert [sample.payload for sample in state.open["a"].samples] == [b"x"]


def test_a_journal_in_use_is_taken_by_nobody_else(journal, tmp_path):
    assert states_of(tmp_path) == []
    assert states_of(tmp_path, "another") == []


def test_environments_whose_names_begin_alike_have_journals_of_their_own(tmp_path):
    for name in ("math-0a", "math-hard-0b"):
        file = JournalFile(tmp_path / f"{name}.journal", limit_bytes=MB)
        file.open([RunStarted(name)])
        file.close()
    assert [state.run_id for state in states_of(tmp_path)] == ["math-0a"]


def test_a_record_is_on_the_disk_when_its_number_was_synchronised(journal):
    number = journal.write(RolloutBegun("a", "t"))
    assert journal.synchronise().wait(WAIT_S)
    assert journal.synchronised >= number


def test_ended_rollouts_take_no_space_for_long(journal, monkeypatch):
    monkeypatch.setattr(journal_file, "REWRITE_BYTES", MB)
    journal.write(RolloutBegun("kept", "t"))
    journal.write(SampleFinished("kept", b"k" * 1000))
    for number in range(64):
        name = f"{number}"
        journal.write(SampleFinished(name, bytes(MB // 8)))
        journal.write(RolloutEnded(name))
        assert journal.synchronise().wait(WAIT_S)
    assert journal.path.stat().st_size < 2 * MB
    journal.write(SampleFinished("kept", b"l"))
    journal.close()
    (state,) = states_of(journal.path.parent)
    assert [len(sample.payload) for sample in state.open["kept"].samples] == [1000, 1]
    journal.open([RunStarted("again")])  # for the fixture's close


def test_beyond_the_bound_the_oldest_samples_are_dropped_and_counted(journal):
    for number in range(20):
        journal.write(RolloutBegun(f"{number}", "t"))
        journal.write(SampleFinished(f"{number}", bytes(MB)))
        assert journal.synchronise().wait(WAIT_S)
    journal.close()
    (state,) = states_of(journal.path.parent)
    kept = [name for name, entry in state.open.items() if entry.samples]
    assert kept[-1] == "19" and 4 <= len(kept) <= 8
    assert journal.dropped_samples == 20 - len(kept)
    assert len(state.open) == 20  # their items are still to be done
    journal.open([RunStarted("again")])


def test_a_disk_that_refuses_ends_the_journal_and_nobody_waits(journal, monkeypatch, caplog):
    def refuse(descriptor, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_file, "_write_all", refuse)
    journal.write(RolloutBegun("a", "t"))
    assert journal.synchronise().wait(WAIT_S)
    assert journal.synchronise().wait(WAIT_S)
    assert "No space left" in caplog.text
    assert journal.failure is not None


def test_a_journal_that_cannot_be_opened_leaves_no_file(tmp_path, monkeypatch):
    def refuse(descriptor, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_file, "_write_all", refuse)
    file = JournalFile(tmp_path / "math-0a.journal", limit_bytes=MB)
    with pytest.raises(OSError, match="No space left"):
        file.open([RunStarted("r")])
    assert [*tmp_path.iterdir()] == []


WRITER = """
import sys, time
from pathlib import Path
from atroposlib.envs.journal.journal_file import JournalFile
from atroposlib.envs.journal.journal_records import RunStarted, SampleFinished
file = JournalFile(Path(sys.argv[1]), limit_bytes=10**6)
file.open([RunStarted("r")])
number = 0
while True:
    file.write(SampleFinished("a", b"%d" % number))
    file.synchronise().wait()
    print(number, flush=True)
    number += 1
"""


def test_kill_9_loses_nothing_that_was_synchronised(tmp_path):
    path = tmp_path / "math-0c.journal"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    lines = [int(process.stdout.readline()) for _ in range(20)]
    os.kill(process.pid, signal.SIGKILL)
    lines += [int(line) for line in process.stdout.read().splitlines()]
    process.wait(WAIT_S)
    process.stdout.close()
    (state,) = states_of(tmp_path)
    payloads = [int(sample.payload) for sample in state.open["a"].samples]
    assert payloads[: len(lines)] == lines
