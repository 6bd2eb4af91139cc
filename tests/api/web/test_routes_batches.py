"""Batches over HTTP: claimed, prefetched, acked, split over ranks; and the old GET /batch."""

from __future__ import annotations

import asyncio

import pytest
import zstandard

from atroposlib.wire.binary import concatenate_frames
from atroposlib.wire.notes import CLIPPED, GroupNotes, pack_notes
from tests.api.harness import ENV, TRAINER, group, marks


@pytest.fixture(params=["api", "durable"])
def any_api(request):
    return request.getfixturevalue(request.param)


# --- claim and ack ------------------------------------------------------------------


async def test_claim_and_ack_deliver_each_group_once(any_api):
    api = any_api
    generation = await api.registered()
    await api.post("/scored_data_list", [group(mark=1), group(mark=2)])
    first = await api.claim(generation, claim_id="a")
    assert (first["batch_no"], first["epoch"], marks(first)) == (1, 1, [1, 2])
    again = await api.claim(generation, claim_id="a")
    assert (again["batch_no"], again["epoch"], marks(again)) == (1, 2, [1, 2])
    none = await api.http.post("/batches/1/ack", json={"generation": generation, "epoch": 3})
    assert (none.status_code, none.json()["status"]) == (409, "fenced")
    assert await api.ack(first, generation) == {"status": "acked", "first": True}
    assert await api.ack(again, generation) == {"status": "acked", "first": False}
    empty = await api.claim(generation)
    assert empty["batch"] is None and "empty" in empty["blocked_reason"]
    status = await api.get("/status")
    assert (status["batches_acked"], status["batches_open"]) == (1, 0)


async def test_a_claim_needs_the_current_trainer(api):
    reply = await api.http.post("/batches/claim", json={"generation": 1})
    assert (reply.status_code, reply.json()["status"]) == (409, "not_registered")
    old = await api.registered()
    await api.registered()
    reply = await api.http.post("/batches/claim", json={"generation": old})
    assert (reply.status_code, reply.json()["status"]) == (409, "fenced")


async def test_a_waiting_claim_gets_the_batch_as_soon_as_it_forms(api):
    generation = await api.registered()
    waiting = asyncio.create_task(api.claim(generation, wait_s=30))
    while (await api.get("/status"))["state"] != "STARTED":
        await asyncio.sleep(0)
    await api.post("/scored_data", group(2))
    await api.post("/scored_data", group(2))
    assert len((await waiting)["batch"]) == 2


async def test_the_status_of_an_environment_counts_prefetched_batches(api):
    generation = await api.registered(batch_size=4)
    await api.claim(generation)  # the run has started: environments may join
    env_id = (await api.post("/register-env", ENV))["env_id"]
    await api.post("/scored_data_list", [group(4, env_id=env_id)] * 2)
    await api.claim(generation)
    assert "batches_open" not in await api.post("/status-env", {"env_id": env_id})
    await api.claim(generation)
    told = await api.post("/status-env", {"env_id": env_id})
    assert (told["batches_open"], told["current_step"], told["queue_size"]) == (2, 2, 2)


async def test_the_next_batch_may_be_fetched_while_one_is_in_training(any_api):
    api = any_api
    generation = await api.registered()
    await api.post("/scored_data_list", [group(4, mark=1), group(4, mark=2)])
    one = await api.claim(generation, claim_id="one")
    two = await api.claim(generation, claim_id="two")
    assert (marks(one), marks(two)) == ([1], [2])
    assert marks(await api.claim(generation, claim_id="one")) == [1]
    assert (await api.claim(generation, claim_id="three"))["batch"] is None
    assert (await api.get("/status"))["batches_open"] == 2


async def test_a_batch_with_an_expired_lease_is_delivered_again_whole(api):
    generation = await api.registered()
    await api.post("/scored_data_list", [group(4, mark=1), group(4, mark=2)])
    first = await api.claim(generation, claim_id="a", lease_s=60)
    await api.post("/batches/1/extend", {"generation": generation, "epoch": 1, "lease_s": 90})
    api.now += 80
    assert marks(await api.claim(generation, claim_id="b")) == [2]
    api.now += 20
    again = await api.claim(generation, claim_id="c")
    assert (again["batch_no"], again["epoch"]) == (first["batch_no"], 2)
    fenced = await api.http.post(
        "/batches/1/extend", json={"generation": generation, "epoch": 1}
    )
    assert fenced.status_code == 409


async def test_an_unnamed_claim_whose_reply_was_lost_is_redelivered_before_its_lease_expires(
    api,
):
    generation = await api.registered()
    await api.post("/scored_data", group(4))
    await api.hang_up_after("POST", "/batches/claim", {"generation": generation})
    again = await api.claim(generation)
    assert (again["batch_no"], again["epoch"]) == (1, 2)


async def test_a_waiting_claim_of_a_disconnected_client_ends_without_a_lease(api):
    generation = await api.registered()
    await api.hang_up_after("POST", "/batches/claim", {"generation": generation, "wait_s": 30})
    await api.post("/scored_data", group(4))
    assert (await api.claim(generation))["epoch"] == 1


async def test_a_second_trainer_makes_the_first_stale_and_takes_over_its_batch(any_api):
    api = any_api
    old = await api.registered()
    await api.post("/scored_data", group(4))
    first = await api.claim(old, claim_id="a")
    new = await api.registered()
    again = await api.claim(new, claim_id="b")
    assert (again["batch_no"], again["epoch"]) == (1, 2) and again["batch"] == first["batch"]
    late = await api.http.post("/batches/1/ack", json={"generation": old, "epoch": 1})
    assert (late.status_code, late.json()["status"]) == (409, "fenced")
    assert (await api.ack(again, new))["first"] is True


async def test_a_damaged_group_aborts_the_reply_and_the_other_groups_return_in_a_later_batch(
    durable,
):
    api = durable
    generation = await api.registered()
    await api.post("/scored_data_list", [group(mark=1), group(mark=2), group(mark=3)])
    damage(api.service.store, gid=1)
    with pytest.raises(Exception):  # the connection breaks off in the middle
        reply = await api.http.post("/batches/claim", json={"generation": generation})
        reply.raise_for_status()
        reply.json()
    status = await api.get("/status")
    assert (status["dead_groups"], status["batches_open"]) == (1, 0)
    assert marks(await api.claim(generation)) == [2, 3]


def damage(store, gid):
    store.do(lambda c: c.execute("UPDATE payload SET start = start + 1 WHERE gid = ?", (gid,)))


# --- numbers that no batch has --------------------------------------------------------


@pytest.mark.parametrize("no", [-1, 0, 5, 2**63, 10**30])
@pytest.mark.parametrize("verb", ["ack", "extend", "commit", "rewind"])
async def test_a_batch_that_does_not_exist_is_answered_409(api, no, verb):
    generation = await api.registered()
    body = {"generation": generation, "epoch": 10**30 if no == 5 else 1}
    reply = await api.http.post(f"/batches/{no}/{verb}", json=body)
    if (no, verb) == (0, "commit") or (no, verb) == (0, "rewind"):
        assert reply.status_code == 200  # a checkpoint from before the first batch
    else:
        assert (reply.status_code, reply.json()["status"]) == (409, "fenced")
    for asked in ({"generation": 10**30}, {"generation": -1}):
        reply = await api.http.post("/batches/claim", json=asked)
        assert reply.status_code == 409


# --- ranks ------------------------------------------------------------------------------


async def test_the_shards_of_all_ranks_cover_the_batch_and_all_must_ack(any_api):
    api = any_api
    generation = await api.registered(batch_size=8)
    await api.post("/scored_data_list", [group(mark=mark) for mark in range(4)])
    first = await api.claim(generation, world_size=2, rank=0, claim_id="a")
    where = f"/batches/{first['batch_no']}/shards"
    asked = {"generation": generation, "epoch": first["epoch"]}
    other = await api.get(f"{where}/1", params=asked)
    assert sorted(marks(first) + marks(other)) == [0, 1, 2, 3]
    assert len(first["batch"]) == len(other["batch"]) == 2
    same = await api.get(f"{where}/0", params=asked)
    assert same == first
    assert (await api.ack(first, generation, rank=0))["first"] is False
    assert (await api.get("/status"))["batches_acked"] == 0
    assert (await api.ack(first, generation, rank=1))["first"] is True
    for refused in (
        await api.http.get(f"{where}/2", params=asked),
        await api.http.get(f"{where}/{10**30}", params=asked),
        await api.http.post(f"/batches/{first['batch_no']}/ack", json=asked | {"rank": 2}),
        await api.http.post("/batches/claim", json={"generation": generation, "rank": 1}),
    ):
        assert refused.status_code in (409, 422)
    late = await api.http.get(f"{where}/1", params=asked | {"epoch": 7})
    assert late.status_code == 409


# --- GET /batch -------------------------------------------------------------------------


async def test_a_batch_whose_reply_was_lost_is_delivered_again(any_api):
    api = any_api
    await api.started()
    await api.post("/scored_data_list", [group(mark=1), group(mark=2), group(4, mark=3)])
    await api.hang_up_after("GET", "/batch")
    assert marks(await api.get("/batch")) == [1, 2]
    assert marks(await api.get("/batch")) == [3]
    assert (await api.get("/status"))["current_step"] == 2


async def test_the_next_get_acks_and_frees_the_previous_batch(api):
    await api.started()
    await api.post("/scored_data_list", [group(4, mark=1), group(4, mark=2)])
    assert marks(await api.get("/batch")) == [1]
    assert (await api.get("/status"))["batches_acked"] == 0
    assert marks(await api.get("/batch")) == [2]
    full = (await api.get("/status"))["retained_bytes"]
    assert await api.get("/batch") == {"batch": None}
    status = await api.get("/status")
    assert (status["batches_acked"], status["retained_bytes"]) == (2, 0) and full > 0


async def test_gets_and_claims_of_one_trainer_share_one_queue(api):
    generation = await api.registered()
    await api.post("/scored_data_list", [group(4, mark=mark) for mark in (1, 2, 3)])
    assert marks(await api.get("/batch")) == [1]
    assert marks(await api.claim(generation, claim_id="x")) == [2]
    assert (await api.http.get("/batch")).status_code == 409  # from the first claim on


async def test_an_empty_poll_makes_no_call_of_the_store(api, monkeypatch):
    generation = await api.registered()
    await api.post("/scored_data", group(2))
    service = api.service
    assert await api.get("/batch") == {"batch": None}
    with monkeypatch.context() as without:
        without.setattr(service.store, "do", None)
        without.setattr(service.store, "ask", None)
        assert await api.get("/batch") == {"batch": None}
    await api.claim(generation)
    service.store.close()  # every later caller is rejected
    assert "2 of 4" in (await api.claim(generation))["blocked_reason"]
    assert (await api.get("/status"))["queue_size"] == 1


async def test_environments_get_their_settings_from_the_current_trainer(api):
    await api.started()
    await api.post("/register", TRAINER | {"num_steps": 7, "checkpoint_dir": "other"})
    joined = await api.post("/register-env", ENV)
    assert (joined["num_steps"], joined["checkpoint_dir"]) == (7, "other")


# --- notes of the trainer -------------------------------------------------------------


def notes(member=0, rows=2):
    """Notes about one trained token of each row: advantages 0.5, 1.5 ..., the first clipped."""
    made = GroupNotes.empty(member, [1] * rows)
    made.advantages[:] = [0.5 + g for g in range(rows)]
    made.logprobs[:] = -1.5
    made.diff_max[:] = 0.25
    made.flags[0] = CLIPPED
    made.reasons[-1] = "zero_advantage"
    return pack_notes(made)


async def post_notes(api, generation, *files, no=1, epoch=1, more=""):
    path = f"/batches/{no}/notes?generation={generation}&epoch={epoch}{more}"
    headers = {"content-encoding": "zstd", "content-type": "application/x-atropos-notes"}
    body = zstandard.ZstdCompressor().compress(concatenate_frames(files))
    return await api.http.post(path, content=body, headers=headers)


@pytest.mark.parametrize("commits", [False, True])
async def test_notes_about_an_acked_batch_are_shown_with_its_rows(any_api, commits):
    api = any_api
    generation = await api.registered(commits=commits)
    await api.post("/scored_data_list", [group(mark=1), group(mark=2)])
    await api.ack(await api.claim(generation), generation)
    assert (await post_notes(api, generation, notes(0), notes(1))).json() == {"noted": 4}
    api.service.context.indexer.flush()
    [plain, clipped] = (await api.get("/explore/groups/2"))["rows"][::-1]
    assert (clipped["advantage"], clipped["clipped_share"], clipped["why"]) == (0.5, 1.0, None)
    assert (plain["advantage"], plain["diff_max"]) == (1.5, 0.25)
    assert (plain["diff_mean"], plain["why"]) == (None, "zero_advantage")
    if commits:  # else a store without an archive has freed the tokens
        columns = (await api.get("/explore/groups/2/rows/0"))["columns"]
        assert (columns["trainer_logprob"][-1], columns["flags"][-1]) == (-1.5, CLIPPED)


async def test_notes_that_do_not_fit_the_batch_are_refused(api):
    generation = await api.registered()
    await api.post("/scored_data_list", [group(mark=1), group(mark=2)])
    await api.claim(generation, world_size=2)
    shard = await post_notes(api, generation, notes(0), more="&rank=1")
    assert shard.json() == {"noted": 2}
    for files, code in (
        ([notes(2)], 422),  # no such member
        ([notes(0, rows=3)], 422),
        ([b"no notes"], 400),
        ([bytes(300_000)], 400),  # more than a control message may have
        ([bytes(33 * 2**20)], 413),
        ([notes(0)] * 3, 400),  # more files than groups
    ):
        assert (await post_notes(api, generation, *files)).status_code == code
    old = await post_notes(api, generation - 1, notes(0))
    assert (old.status_code, old.json()["status"]) == (409, "fenced")
    assert (await post_notes(api, generation, notes(0), no=7)).status_code == 409
    assert (await post_notes(api, generation, notes(0), more="&rank=9")).status_code == 422
