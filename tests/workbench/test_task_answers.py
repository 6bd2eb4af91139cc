"""Answers of several runs to one task."""

from __future__ import annotations

import pytest

from atroposlib.workbench.catalogue import Catalogue
from atroposlib.workbench.task_answers import answers_document, newest_rows, rollout_answers
from atroposlib.workbench.views import Views
from tests.api.harness import Api, sampled
from tests.workbench.made_runs import make_run, write_check


@pytest.fixture
def views():
    views = Views(lambda explorer: explorer)
    yield views
    views.close()


def test_held_out_answers_of_each_check_stand_side_by_side(tmp_path, views):
    for name, reward in (("a", 0.25), ("b", 1.0)):
        write_check(make_run(tmp_path / name, heldout={"x": reward}), 1, {"x": 0.0})
    catalogue = Catalogue(tmp_path)
    document = answers_document(catalogue.refresh(), "x", "held-out", views)
    steps = [
        [(one["step"], one["reward"]) for one in run["answers"]] for run in document["runs"]
    ]
    assert steps == [[(1, 0.0), (3, 0.25)], [(1, 0.0), (3, 1.0)]]
    assert document["runs"][0]["prompt"] == "say x"
    assert document["runs"][1]["answers"][1]["text"] == "x!"
    catalogue.close()


async def test_rollouts_of_an_ended_run_come_from_its_folder(tmp_path, views):
    api = Api(tmp_path / "run/queue", "sqlite", archive_bytes=10**6)
    [env_id] = await api.started(batch_size=2)
    messages = [[{"role": "assistant", "content": text}] for text in ("first", "second")]
    facts = {"item": "clips/1"}
    body = sampled(0, env_id=env_id, messages=messages, metadata=facts)
    await api.post("/scored_data", body)
    await api.end()
    make_run(tmp_path / "other")
    catalogue = Catalogue(tmp_path)
    document = answers_document(catalogue.refresh(), "e_0/clips/1", "rollouts", views)
    other, run = document["runs"]
    assert [one["text"] for one in run["answers"]] == ["first", "second"]
    assert "keeps no rollouts" in other["problem"]
    catalogue.close()


def test_names_of_environments_may_hold_a_slash():
    asked = []

    def ask(path, query):
        asked.append(query["item"])
        return {"rows": []}

    assert rollout_answers(ask, "a/b/c") == {"answers": [], "prompt": None}
    assert asked == ["b/c", "c"]


def test_answers_are_those_of_every_process_of_the_environment():
    labels = ["e_0", "e_1", "f_0", "e_long_0", None, "e"]
    rows = [{"env": label} for label in labels]
    assert [row["env"] for row in newest_rows(lambda *_: {"rows": rows}, "e/q")] == [
        "e_0",
        "e_1",
        "e",
    ]
    assert newest_rows(lambda *_: {"rows": rows}, "e_1/q") == [{"env": "e_1"}]
