"""Routes below /explore of the whole application."""

from __future__ import annotations

import pytest

from atroposlib.api.guards.auth import ADMIN, READ, SCOPES_OF
from atroposlib.api.store.sqlite import SqliteStore
from tests.api.harness import Api, group


async def test_a_posted_group_is_listed_and_opened(api):
    [env_id] = await api.started(batch_size=2)
    await api.post("/scored_data", group(env_id=env_id, group_id="q/1"))
    api.service.context.indexer.flush()
    reply = await api.http.get("/explore/rollouts?env=e_0&limit=1")
    assert reply.headers["cache-control"] == "no-store"
    page = reply.json()
    assert page["counted"] == {"n": 2, "exact": True}
    [row] = page["rows"]
    assert (row["gid"], row["row"], row["group_id"], row["diff_max"]) == (1, 1, "q/1", None)
    rest = await api.http.get(
        "/explore/rollouts", params={"env": "e_0", "after": page["next"]}
    )
    assert [(one["gid"], one["row"]) for one in rest.json()["rows"]] == [(1, 0)]
    assert len((await api.get("/explore/groups/1"))["rows"]) == 2
    view = await api.get("/explore/groups/1/rows/0?from=1")
    assert (view["from"], view["to"], view["columns"]["id"]) == (1, 2, [7])


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/explore/rollouts?order=up", 422),
        ("/explore/rollouts?limit=1000", 422),
        ("/explore/groups/9", 404),
        ("/explore/batches/9", 404),
        ("/explore/curves?bucket=0", 422),
        ("/explore/groups/x", 422),
        ("/explore/groups/9/rows/0", 404),
        ("/explore/groups/" + "9" * 40, 404),
    ],
)
async def test_what_is_not_there_is_refused_with_a_sentence(api, path, status):
    reply = await api.http.get(path)
    assert reply.status_code == status
    assert reply.json()["detail"]


def test_every_view_of_the_explorer_needs_the_scope_read_and_a_pin_that_of_operators():
    routes = {route: scopes for route, scopes in SCOPES_OF.items() if "/explore" in route[1]}
    assert {scopes for (method, _), scopes in routes.items() if method == "GET"} == {READ}
    assert {scopes for (method, _), scopes in routes.items() if method == "POST"} == {ADMIN}


async def test_a_pinned_step_of_a_live_run_outlives_retention_until_it_is_unpinned(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "tests.api.harness.open_store",
        lambda *_: SqliteStore(tmp_path, archive_bytes=700, segment_bytes=1),
    )
    api = Api(tmp_path)
    generation = await api.registered(batch_size=2)

    async def step(mark):
        await api.post("/scored_data", group(mark=mark))
        assert await api.trained(generation) == [mark]
        api.service.context.indexer.flush()

    async def kept():
        found = [await api.http.get(f"/explore/groups/{gid}/rows/0") for gid in (1, 2, 3)]
        return [one.status_code == 200 for one in found]

    await step(1)
    await step(2)
    assert await api.post("/explore/steps/2/pin", {}) == {"groups": 1, "pinned": 1}
    unknown = await api.post(f"/explore/steps/{10**30}/pin", {})
    assert unknown["groups"] == 0
    await step(3)
    await step(4)
    assert await kept() == [False, True, False]
    assert (await api.get("/explore/batches/2"))["pinned"] == 1
    await api.restart()
    await api.post("/explore/steps/2/pin?kept=false", {})
    await step(5)
    assert await kept() == [False, False, False]
    assert (await api.get("/explore/batches/2"))["pinned"] == 0
    await api.end()


async def test_a_store_without_an_archive_refuses_a_pin(api):
    reply = await api.http.post("/explore/steps/1/pin")
    assert reply.status_code == 422 and "--archive off" in reply.json()["detail"]


async def test_looking_changes_nothing(api):
    [env_id] = await api.started(batch_size=2)
    await api.post("/scored_data", group(env_id=env_id))
    api.service.context.indexer.flush()
    before = await api.get("/status")
    paths = [path for _, path in SCOPES_OF if path.startswith("/explore") and "{" not in path]
    for path in (*paths, "/explore/groups/1", "/explore/groups/1/rows/0"):
        assert (await api.http.get(path)).status_code == 200, path
    # Figures of the balance are read every few seconds.
    assert await api.get("/status") | {"tokens": before["tokens"]} == before
