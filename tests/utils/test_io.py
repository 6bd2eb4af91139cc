"""Files that appear whole; JSON bodies of HTTP responses, and the log of failures."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from atroposlib.utils.io import (
    file_name_of,
    name_of_file,
    parse_http_response,
    sync_path,
    whole_file,
    write_whole,
)


class Refused:
    """A response of status 500 with a body, or without one that can be read."""

    status = 500

    def __init__(self, body: str | None) -> None:
        self.body = body

    def raise_for_status(self):
        raise OSError("bad")

    async def text(self):
        if self.body is None:
            raise ConnectionResetError("gone")
        return self.body


async def test_a_failed_http_response_is_logged_with_its_body_and_raised(caplog):
    with pytest.raises(OSError, match="bad"):
        await parse_http_response(Refused("the body"))
    assert "the body" in caplog.text


async def test_a_body_that_cannot_be_read_does_not_hide_the_bad_status(caplog):
    with pytest.raises(OSError, match="bad"):
        await parse_http_response(Refused(None))
    assert "500" in caplog.text and "gone" in caplog.text


async def test_a_successful_http_response_is_returned_as_json():
    class Response:
        def raise_for_status(self):
            pass

        async def json(self):
            return {"a": 1}

    assert await parse_http_response(Response()) == {"a": 1}


def test_a_file_is_written_whole_for_its_user_alone(tmp_path):
    file = tmp_path / "launch" / "token"
    write_whole(file, "old")
    held = file.open()  # a reader of the old file
    write_whole(file, "new")
    with held:
        assert (held.read(), file.read_text()) == ("old", "new")
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "no space left on device")

    file = tmp_path / "plan"
    write_whole(file, "old")
    monkeypatch.setattr("atroposlib.utils.io.os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_whole(file, "new")
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_a_block_that_fails_leaves_the_file_as_it_was(tmp_path):
    file = tmp_path / "rows"
    with whole_file(file) as draft:
        draft.write_text("old")
        assert not file.exists()
    with pytest.raises(ValueError, match="bad row"), whole_file(file) as draft:
        draft.write_text("ne")
        raise ValueError("bad row")
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_files_and_folders_are_synced(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("atroposlib.utils.io.os.fsync", synced.append)
    (tmp_path / "file").touch()
    sync_path(tmp_path / "file")
    sync_path(tmp_path)
    assert len(synced) == 2


@given(st.text(st.characters(), max_size=9), st.text(st.characters(), max_size=9))
def test_different_names_have_different_files_in_the_folder(one, other):
    files = file_name_of(one), file_name_of(other)
    assert (one == other) == (files[0] == files[1])
    assert "/" not in files[0] and files[0].isascii() and len(files[0]) <= 120
    if one.isprintable() and len(files[0]) < 100:
        assert name_of_file(files[0]) == one


def test_long_names_end_in_a_digest():
    one, other = "math " * 100 + "a", "math " * 100 + "b"
    assert file_name_of(one) != file_name_of(other)
    assert name_of_file(file_name_of(one)).startswith("math math ")
