"""A file of lines holds each batch once, wherever the process was killed."""

from __future__ import annotations

import pytest

from atroposlib.cli.collect.line_file import LineFile
from atroposlib.errors import ConfigError
from atroposlib.wire import ClaimedBatch


def opened(path, run_id="run", append=False):
    file = LineFile(path, append=append)
    file.open(run_id)
    return file


def test_lines_and_progress_are_written_together(tmp_path):
    file = opened(tmp_path / "f.jsonl")
    file.append([{"a": 1}, {"a": "é"}], 1)
    file.append([{"a": 3}], 2)
    assert file.path.read_text("utf-8") == '{"a": 1}\n{"a": "é"}\n{"a": 3}\n'
    progress = file.progress
    assert (progress.lines, progress.batch_no, progress.bytes) == (3, 2, 30)
    assert file.holds(ClaimedBatch(batch_no=2, epoch=2, batch=[]))
    assert not file.holds(ClaimedBatch(batch_no=3, epoch=1, batch=[]))


def test_bytes_after_the_last_progress_are_truncated_at_the_next_start(tmp_path):
    path = tmp_path / "f.jsonl"
    opened(path).append([{"a": 1}], 1)
    with path.open("ab") as file:
        file.write(b'{"a": 2}\n{"a"')
    again = LineFile(path, append=True)
    assert (again.resumed, again.cut) == (True, 13)
    again.open("run")
    assert path.read_bytes() == b'{"a": 1}\n' and again.progress.batch_no == 1


def test_batch_numbers_of_another_run_do_not_count_as_written(tmp_path):
    path = tmp_path / "f.jsonl"
    opened(path).append([{"a": 1}], 1)
    again = opened(path, run_id="another", append=True)
    assert (again.progress.lines, again.progress.batch_no) == (1, 0)


def test_an_existing_file_is_rejected_without_the_append_flag(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text("no end of line")
    with pytest.raises(ConfigError, match="--append-to-previous"):
        LineFile(path, append=False)
    opened(path, append=True).append([{"a": 1}], 1)
    assert path.read_text() == 'no end of line\n{"a": 1}\n'
    with pytest.raises(ConfigError, match="no directory"):
        LineFile(tmp_path / "none" / "f.jsonl", append=False)


def test_a_file_shorter_than_its_progress_is_refused(tmp_path):
    path = tmp_path / "f.jsonl"
    file = opened(path)
    file.append([{"a": 1}], 1)
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="fewer than were collected"):
        LineFile(path, append=True)
    file.finish()
    assert not LineFile(path, append=True).resumed
