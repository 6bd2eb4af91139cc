"""The record by which a trainer ends a run."""

from __future__ import annotations

import json
from pathlib import Path

from example_trainer.state import end


def test_a_record_is_written_whole_and_forgotten(tmp_path):
    file = tmp_path / "launch" / end.FILE
    end.forget(file)
    end.record_end(file, step=7, life="l")
    assert json.loads(file.read_text()) == {"step": 7, "life": "l"}
    assert [path.name for path in file.parent.iterdir()] == [end.FILE]
    end.forget(file)
    assert not file.exists()


def test_the_launcher_names_the_file(monkeypatch):
    monkeypatch.delenv(end.VARIABLE, raising=False)
    assert end.end_file() is None
    monkeypatch.setenv(end.VARIABLE, "/runs/a/ended.json")
    assert end.end_file() == Path("/runs/a/ended.json")
