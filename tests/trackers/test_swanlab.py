from __future__ import annotations

from atroposlib.trackers.services import open_swanlab
from tests.trackers.runs import plain, recorded_package, run_of


def test_a_run_is_resumed_by_its_id(monkeypatch):
    calls = recorded_package(monkeypatch, "swanlab")
    tracker = open_swanlab(run_of())
    tracker.log({"train/loss": 0.5}, 5)
    tracker.close()
    (_, given), logged, ended = calls
    assert plain(given) == {
        "project": "atropos",
        "group": "g",
        "name": "night",
        "id": "run-1",
        "resume": "allow",
        "config": {"lr": 0.1},
    }
    assert (logged, ended) == (("log", {"train/loss": 0.5}, 5), ("finish",))


def test_a_run_without_an_id_is_not_resumed(monkeypatch):
    calls = recorded_package(monkeypatch, "swanlab")
    open_swanlab(run_of(run_id=None))
    assert (calls[0][1]["id"], calls[0][1]["resume"]) == (None, None)
