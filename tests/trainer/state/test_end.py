"""The record by which a trainer ends a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from example_trainer.state import end


def test_a_record_is_written_whole_and_forgotten(tmp_path):
    file = tmp_path / "launch" / end.FILE
    end.forget(file)
    end.record_end(file, step=7, life="l")
    assert json.loads(file.read_text()) == {"step": 7, "life": "l"}
    assert [path.name for path in file.parent.iterdir()] == [end.FILE]
    end.forget(file)
    assert not file.exists()


def test_the_word_that_no_groups_come_lies_beside_the_record(tmp_path, monkeypatch):
    file = tmp_path / end.FILE
    monkeypatch.setenv(end.VARIABLE, str(file))
    end.expect_no_groups(file)
    end.forget(file)
    assert end.have_environments_ended()
    end.expect_groups(file)
    assert not end.have_environments_ended()


@pytest.mark.parametrize(("text", "step"), [('{"step": 7}', 7), ("{}", None), ("[", None)])
def test_the_last_step_is_read_from_a_record(tmp_path, text, step):
    (tmp_path / end.FILE).write_text(text)
    assert end.ended_step(tmp_path / end.FILE) == step
    assert end.ended_step(tmp_path / "absent") is None


def test_the_launcher_names_the_file(monkeypatch):
    monkeypatch.delenv(end.VARIABLE, raising=False)
    assert end.end_file() is None
    monkeypatch.setenv(end.VARIABLE, "/runs/a/ended.json")
    assert end.end_file() == Path("/runs/a/ended.json")
