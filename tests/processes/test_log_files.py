"""Logs of children stay bounded while the children write."""

from __future__ import annotations

import subprocess
import sys
import time

from atroposlib.processes.log_files import keep_small, part_of

WRITER = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


def test_a_child_writes_on_into_its_log_while_the_text_moves_to_older_parts(tmp_path):
    log = tmp_path / "a.log"
    with log.open("ab") as output:
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=output, text=True
        )
    with writer:
        for number in range(20):
            before = log.stat().st_size
            writer.stdin.write(f"{number}\n" * 100)
            writer.stdin.flush()
            while log.stat().st_size < before + len(f"{number}\n" * 100):
                time.sleep(0.001)
            keep_small(log, 500, older_parts=100)
    parts = [part_of(log, number) for number in range(100, 0, -1)] + [log]
    text = "".join(part.read_text() for part in parts if part.exists())
    assert text == "".join(f"{number}\n" * 100 for number in range(20))
    assert part_of(log, 3).exists() and writer.returncode == 0


def test_the_number_of_older_parts_and_the_size_of_the_log_are_bounded(tmp_path):
    log = tmp_path / "a.log"
    for number in range(10):
        with log.open("a") as file:
            file.write(f"{number}" * 50 + "\n")
        assert keep_small(log, 40, older_parts=2)
        assert log.stat().st_size == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["a.log", "a.log.1", "a.log.2"]
    assert "9" * 50 in part_of(log, 1).read_text() and "8" * 50 in part_of(log, 2).read_text()


def test_a_small_and_an_absent_log_stay(tmp_path):
    (tmp_path / "a.log").write_text("text")
    assert not keep_small(tmp_path / "a.log") and not keep_small(tmp_path / "b.log")
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"]
