"""GET /explore/why: findings over the looks of this process, and their events."""

from __future__ import annotations

import pytest

from atroposlib.api.run import doctor
from tests.api.harness import Api

FAILING = {"role": "env", "name": "e-0a1b2c", "phase": "rollout", "waiting_on": None}


@pytest.fixture
async def api(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "APART_S", 0.0)
    made = Api(tmp_path)
    yield made
    await made.end()


def kinds(api):
    ring = api.service.events._ring
    return [(e.fields["key"], e.fields["change"]) for e in ring if e.kind == "finding"]


async def test_a_finding_appears_with_an_event_and_keeps_its_time(api):
    first = await api.get("/explore/why")
    again = await api.get("/explore/why")
    assert [one["key"] for one in first["findings"]] == ["no-trainer"]
    assert first["findings"][0]["at"] == again["findings"][0]["at"]
    assert first["moving"] is None
    assert kinds(api) == [("no-trainer", "began")]


async def test_a_finding_that_ended_is_an_event(api):
    await api.get("/explore/why")
    await api.started()
    await api.post("/heartbeat", FAILING | {"details": {"failed_in_a_row": 4}})
    answer = await api.get("/explore/why")
    assert "rollouts-fail" in [one["key"] for one in answer["findings"]]
    assert ("no-trainer", "ended") in kinds(api)


async def test_the_answer_is_never_stored_by_a_browser_and_changes_nothing(api):
    before = await api.get("/status")
    reply = await api.http.get("/explore/why")
    assert reply.headers["cache-control"] == "no-store"
    after = await api.get("/status")
    assert {k: v for k, v in before.items() if k != "ages_s"} == {
        k: v for k, v in after.items() if k != "ages_s"
    }
