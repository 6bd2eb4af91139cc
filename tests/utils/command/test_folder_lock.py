"""One process per folder: refusals, ends by kill, removed files."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from atroposlib.errors import ConfigError
from atroposlib.utils.command.folder_lock import HOLDER, FolderLock

HOLD = """
import sys, time
from pathlib import Path
from atroposlib.utils.command.folder_lock import FolderLock
with FolderLock(Path(sys.argv[1]), "wait"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def refusal(folder):
    with pytest.raises(ConfigError) as caught, FolderLock(folder, "name another folder"):
        pass
    return str(caught.value)


def test_a_second_process_is_refused_with_the_name_of_the_first(holder, tmp_path):
    named = refusal(tmp_path)
    assert f"in use by process {holder.pid} on " in named and "since " in named
    assert named.endswith("name another folder")


def test_removed_files_free_nothing(holder, tmp_path):
    for path in tmp_path.iterdir():
        path.unlink()
    assert "in use by another process" in refusal(tmp_path)


def test_a_killed_holder_frees_its_folder(holder, tmp_path):
    holder.kill()
    holder.wait()
    with FolderLock(tmp_path, "wait"):
        assert f"process {os.getpid()}" in (tmp_path / HOLDER).read_text()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "out").touch()
    assert "out is no folder to work in" in refusal(tmp_path / "out")
