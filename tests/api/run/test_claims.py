"""Commit, rewind and restart over HTTP: each group is trained on exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tests.api.harness import ENV, Api, group, marks
from tests.examples import examples
from tests.torture.figures import fast_folder


@pytest.fixture(params=["api", "durable"])
def any_api(request):
    return request.getfixturevalue(request.param)


async def test_a_rewind_replays_what_was_trained_after_the_checkpoint_in_order(any_api):
    api = any_api
    generation = await api.registered(commits=True)
    await api.post("/scored_data_list", [group(4, mark=mark) for mark in range(1, 6)])
    assert [await api.trained(generation) for _ in range(4)] == [[1], [2], [3], [4]]
    assert await api.post("/batches/1/commit", {"generation": generation}) == {
        "committed": 1,
        "left_open": [],
    }
    generation = await api.registered(commits=True)
    replayed = await api.post("/batches/2/rewind", {"generation": generation})
    assert replayed == {"replayed": 2, "gone": 0}
    assert [await api.trained(generation) for _ in range(4)] == [[3], [4], [5], None]
    assert await api.post("/batches/5/commit", {"generation": generation}) == {
        "committed": 4,
        "left_open": [],
    }
    assert (await api.get("/status"))["retained_bytes"] == 0


async def test_a_rewind_before_a_commit_reports_the_number_of_lost_batches(api):
    generation = await api.registered()  # no commits announced: an ack frees at once
    await api.post("/scored_data_list", [group(4, mark=mark) for mark in (1, 2)])
    await api.trained(generation)
    await api.trained(generation)
    assert await api.post("/batches/0/rewind", {"generation": generation}) == {
        "replayed": 0,
        "gone": 2,
    }


async def test_a_stale_trainer_can_neither_commit_nor_rewind(api):
    old = await api.registered(commits=True)
    await api.post("/scored_data", group(4))
    await api.trained(old)
    await api.registered(commits=True)
    for verb in ("commit", "rewind"):
        reply = await api.http.post(f"/batches/1/{verb}", json={"generation": old})
        assert (reply.status_code, reply.json()["status"]) == (409, "fenced")


async def test_a_restart_of_the_api_resumes_the_run(durable):
    api = durable
    [env_id] = await api.started(envs=(ENV | {"group_size": 4},))
    await api.post("/policy_version", {"version": 3})
    await api.post("/scored_data_list", [group(4, mark=1), group(4, mark=2)])
    await api.post("/scored_data", group(3, mark=3, env_id=env_id))
    assert marks(await api.get("/batch")) == [1]
    before = await api.get("/status")
    await api.restart()
    # Figures of the balance follow the index, which a restart reads again.
    timed = {name: before[name] for name in ("ages_s", "tokens")}
    assert await api.get("/status") | timed == before
    assert marks(await api.get("/batch")) == [2]  # the first reply had gone out whole
    complete = await api.post("/scored_data", group(1, mark=4, env_id=env_id))
    assert complete == {"status": "buffered", "buffer_size": 0}  # the original's words
    assert marks(await api.get("/batch")) == [3, 4]
    assert (await api.post("/status-env", {"env_id": env_id}))["policy_version"] == 3
    assert "run" in api.service.resumed()


async def test_an_unacked_claim_and_its_lease_survive_a_restart(durable):
    api = durable
    generation = await api.registered()
    await api.post("/scored_data_list", [group(4, mark=1), group(4, mark=2)])
    first = await api.claim(generation, claim_id="a")
    await api.restart()
    assert marks(await api.claim(generation, claim_id="b")) == [2]
    again = await api.claim(generation, claim_id="a")
    assert (again["batch_no"], again["epoch"]) == (first["batch_no"], 2)
    assert again["batch"] == first["batch"]
    await api.restart()
    assert (await api.ack(again, generation))["first"] is True


# A trainer with checkpoints: it trains, saves (no, weights) now and then, and crashes. The
# reply to each call may be lost, and the API may restart at any time.
STEPS = st.lists(
    st.sampled_from(["post", "train", "train", "save", "crash", "lose", "restart"]),
    min_size=5,
    max_size=40,
)


@pytest.mark.slow
@examples(15)
@given(steps=STEPS)
async def test_a_trainer_that_rewinds_trains_on_each_group_exactly_once(steps):
    with fast_folder() as folder:
        api = Api(folder, "sqlite")
        try:
            posted, weights = await live(api, steps)
            assert weights == posted[: len(weights)]  # in order, none twice, none left out
            assert len(weights) == len(posted)
        finally:
            await api.end()


async def live(api, steps):
    """Act ``steps``, then train to the end: (marks posted, marks in the final weights)."""
    posted: list[int] = []
    saved = (0, [])  # last batch number and the groups trained on
    no, weights = saved[0], list(saved[1])
    generation = await api.registered(commits=True)
    for step in [*steps, "crash"]:
        if step == "post":
            posted.append(len(posted) + 1)
            await api.post("/scored_data", group(4, mark=posted[-1]))
        elif step == "train":
            no, weights = await train(api, generation, no, weights)
        elif step == "save":
            saved = (no, list(weights))
            await api.post(f"/batches/{no}/commit", {"generation": generation})
        elif step == "lose":
            claim = {"generation": generation, "claim_id": f"after-{no}"}
            await api.hang_up_after("POST", "/batches/claim", claim)
        elif step == "restart":
            await api.restart()
        elif step == "crash":
            no, weights = saved[0], list(saved[1])
            generation = await api.registered(commits=True)
            await api.post(f"/batches/{no}/rewind", {"generation": generation})
    while len(weights) < len(posted):
        before = len(weights)
        no, weights = await train(api, generation, no, weights)
        assert len(weights) > before
    return posted, weights


async def train(api, generation, no, weights):
    claimed = await api.claim(generation, claim_id=f"after-{no}")
    if claimed["batch"] is None:
        return no, weights
    weights = weights + marks(claimed)
    await api.ack(claimed, generation)
    return claimed["batch_no"], weights
