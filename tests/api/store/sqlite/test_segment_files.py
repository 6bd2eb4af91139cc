"""Segment files on a real folder."""

from __future__ import annotations

import os

import pytest

from atroposlib.api.store.sqlite.segment_files import SegmentFiles


@pytest.fixture
def files(tmp_path):
    files = SegmentFiles(tmp_path)
    yield files
    files.close()


def test_parts_are_written_one_after_another(files):
    files.write(1, 0, [b"ab", b"", b"cd"])
    files.write(1, 4, [b"%d," % i for i in range(3000)])  # more than one system call takes
    files.sync(1)
    everything = b"abcd" + b"".join(b"%d," % i for i in range(3000))
    assert files.path(1).read_bytes() == everything
    assert files.read(1, [(2, 4), (0, 1)]) == [b"cd0,", b"a"]


def test_a_write_that_the_system_cut_short_is_continued(files, monkeypatch):
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: whole(fd, [parts[0][:3]], at))
    files.write(1, 0, [b"abcdef", b"gh"])
    assert files.read(1, [(0, 8)]) == [b"abcdefgh"]


@pytest.mark.parametrize(("start", "n_bytes"), [(-1, 2), (2, 9), (0, 2**60), (3, -1)])
def test_places_outside_of_the_file_are_empty(files, start, n_bytes):
    files.write(1, 0, [b"abc"])
    assert files.read(1, [(start, n_bytes), (0, 3)]) == [b"", b"abc"]


def test_files_are_cut_deleted_and_listed_by_number(files, tmp_path):
    for no in (1, 2, 30):
        files.write(no, 0, [b"abcdef"])
    (tmp_path / "payload-x.log").write_bytes(b"another")
    files.cut(2, 4)
    files.cut(30, 9)  # shorter: unchanged
    files.delete(1)
    files.delete(1)
    assert files.numbers() == [2, 30]
    assert (files.read(2, [(0, 4)]), files.path(2).stat().st_size) == ([b"abcd"], 4)
    assert files.path(30).stat().st_size == 6


def test_the_folder_is_synced_once_for_a_new_file(files, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "sync_folder", lambda: synced.append("folder"))
    for start in (0, 1):
        files.write(1, start, [b"a"])
        files.sync(1)
    assert synced == ["folder"]
    again = SegmentFiles(files.path(1).parent)
    monkeypatch.setattr(again, "sync_folder", lambda: synced.append("again"))
    again.write(1, 2, [b"b"])
    again.sync(1)
    again.close()
    assert synced == ["folder"]
