from __future__ import annotations

import pytest

from atroposlib.trackers.services import open_trackio
from tests.trackers.runs import recorded_package, run_of


@pytest.mark.parametrize(
    ("given_name", "run_id", "name", "resume"),
    [
        ("night", "run/1", "night-run-1", "allow"),
        (None, "run/1", "run-1", "allow"),
        ("night", None, "night", "never"),
        (None, None, None, "never"),
    ],
)
def test_the_name_holds_the_id_by_which_a_run_is_resumed(
    monkeypatch, given_name, run_id, name, resume
):
    calls = recorded_package(monkeypatch, "trackio")
    tracker = open_trackio(run_of(name=given_name, run_id=run_id))
    tracker.log({"train/loss": 0.5}, 5)
    tracker.close()
    (_, given), logged, ended = calls
    assert (given["name"], given["resume"], given["embed"]) == (name, resume, False)
    assert (logged, ended) == (("log", {"train/loss": 0.5}, 5), ("finish",))
