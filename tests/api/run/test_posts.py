"""Posts to a full store, and posts whose reply is lost."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from atroposlib.api.store.sql.put import LOST_REPLY_WINDOW_S
from tests.api.harness import ENV, Api, group, marks


@pytest.fixture
async def small(tmp_path):
    """An API with room for two groups, at which old posts wait for at most 0.2 s."""
    api = Api(tmp_path, max_bytes=2 * await size_of_group(tmp_path) + 50, hold_s=0.2)
    yield api
    await api.end()


async def size_of_group(folder):
    api = Api(folder)
    await api.post("/scored_data", group(4))
    size = (await api.get("/status"))["retained_bytes"]
    await api.end()
    return size


async def fill(api):
    for mark in (1, 2):
        reply = await api.post("/scored_data", group(4, mark=mark, idempotency_key=f"k{mark}"))
        assert reply == {"status": "received"}


# --- no room ------------------------------------------------------------------------


async def test_a_post_without_credit_header_waits_for_space_and_then_gets_a_503(small):
    await fill(small)
    reply = await small.http.post("/scored_data", json=group(4, mark=3))
    assert (reply.status_code, reply.json()["status"]) == (503, "store_full")
    assert int(reply.headers["retry-after"]) > 0
    assert (await small.get("/status"))["queue_size"] == 2


async def test_a_held_post_succeeds_as_soon_as_the_trainer_frees_space(tmp_path):
    api = Api(tmp_path, max_bytes=2 * await size_of_group(tmp_path) + 50, hold_s=60.0)
    generation = await api.registered()
    await fill(api)
    held = asyncio.create_task(api.post("/scored_data", group(4, mark=3)))
    await asyncio.sleep(0)
    assert await api.trained(generation) == [1]
    assert await held == {"status": "received"}
    assert [await api.trained(generation) for _ in range(2)] == [[2], [3]]
    await api.end()


async def test_a_post_with_credit_gets_a_429_with_the_bytes_that_fit(small):
    first = await small.post("/groups", [group(4, mark=1)])
    assert (first["accepted"], first["duplicates"], first["buffered"]) == (1, 0, 0)
    await small.post("/groups", [group(4, mark=2)])
    reply = await small.http.post("/groups", json=[group(4, mark=3)])
    assert (reply.status_code, reply.json()["status"]) == (429, "store_full")
    assert int(reply.headers["retry-after"]) > 0
    assert 0 <= reply.json()["credit_bytes"] < first["credit_bytes"]


async def test_a_duplicate_is_accepted_by_a_full_store(small):
    await fill(small)
    again = await small.post("/scored_data", group(4, mark=1, idempotency_key="k1"))
    assert again == {"status": "received", "duplicate": True}


async def test_a_group_larger_than_the_store_is_rejected_at_once(small):
    big = group(4, mark=3, metadata={"text": "x" * 10_000})
    reply = await small.http.post("/scored_data", json=big)
    assert reply.status_code == 422 and "bytes" in reply.json()["detail"]


async def test_one_environment_cannot_fill_the_store_while_another_is_live(tmp_path):
    room = 6 * (await size_of_group(tmp_path) + 40)  # 40: the groups below name their env
    api = Api(tmp_path, max_bytes=room, hold_s=0.0)
    greedy, modest = await api.started(envs=(ENV | {"group_size": 4},) * 2)
    codes = [
        (await api.http.post("/scored_data", json=group(4, mark=mark, env_id=greedy)))
        for mark in range(5)
    ]
    assert [reply.status_code for reply in codes] == [200, 200, 200, 503, 503]
    for mark in (7, 8, 9):
        reply = await api.post("/scored_data", group(4, mark=mark, env_id=modest))
        assert reply == {"status": "received"}
    await api.post("/disconnect-env", {"env_id": modest})
    await api.get("/batch")
    await api.get("/batch")
    reply = await api.post("/scored_data", group(4, mark=6, env_id=greedy))
    assert reply == {"status": "received"}
    await api.end()


async def test_a_full_disk_is_a_503_with_retry_after(tmp_path):
    api = Api(tmp_path, "sqlite", hold_s=0.0)
    api.service.store._spare_bytes = lambda: 0
    reply = await api.http.post("/scored_data", json=group())
    assert (reply.status_code, reply.json()["status"]) == (503, "store_full")
    await api.end()


# --- lost answers -------------------------------------------------------------------


async def test_equal_groups_whose_replies_arrived_are_all_kept(api):
    for _ in range(3):
        assert await api.post("/scored_data", group()) == {"status": "received"}
    assert (await api.get("/status"))["queue_size"] == 3


async def test_a_retried_group_without_a_key_is_deduplicated_once_after_a_disconnect(api):
    await api.hang_up_after("POST", "/scored_data", group())
    assert (await api.get("/status"))["queue_size"] == 1
    again = await api.post("/scored_data", group())
    assert again == {"status": "received", "duplicate": True}
    assert await api.post("/scored_data", group()) == {"status": "received"}
    assert (await api.get("/status"))["queue_size"] == 2


async def test_an_equal_group_posted_much_later_is_a_new_group(api):
    await api.hang_up_after("POST", "/scored_data", group())
    api.now += LOST_REPLY_WINDOW_S + 1
    assert await api.post("/scored_data", group()) == {"status": "received"}


async def test_a_retried_list_is_deduplicated_group_by_group_after_a_disconnect(api):
    await api.hang_up_after("POST", "/scored_data_list", [group(mark=1), group(mark=2)])
    reply = await api.post("/scored_data_list", [group(mark=mark) for mark in (1, 2, 3)])
    assert reply == {"status": "received", "groups_processed": 3, "duplicates": 2}
    assert (await api.get("/status"))["queue_size"] == 3


async def test_retries_of_groups_unanswered_at_a_restart_are_deduplicated_once(
    durable,
):
    await durable.hang_up_after("POST", "/scored_data", group(mark=1))
    durable.now += LOST_REPLY_WINDOW_S + 1
    await durable.post("/scored_data", group(mark=2))
    durable.service.posts.close = lambda: None  # killed before it recorded the reply
    await durable.restart()
    assert "duplicate" not in await durable.post("/scored_data", group(mark=1))
    assert "duplicate" in await durable.post("/scored_data", group(mark=2))
    assert "duplicate" not in await durable.post("/scored_data", group(mark=2))


async def test_a_retry_waits_for_the_post_of_the_disconnected_client(tmp_path):
    api = Api(tmp_path)
    entered, release = asyncio.Event(), asyncio.Event()
    posts = api.service.posts
    durable = posts._durable

    async def slow(put):
        entered.set()
        await release.wait()
        return await durable(put)

    posts._durable = slow
    first = asyncio.create_task(api.hang_up_after("POST", "/scored_data", group()))
    await entered.wait()
    second = asyncio.create_task(api.post("/scored_data", group()))
    for _ in range(50):
        await asyncio.sleep(0)
    release.set()
    await first
    assert await second == {"status": "received", "duplicate": True}
    await api.end()


async def test_a_held_post_of_a_disconnected_client_stores_no_groups(tmp_path):
    api = Api(tmp_path, max_bytes=2 * await size_of_group(tmp_path) + 50, hold_s=60.0)
    generation = await api.registered()
    await fill(api)
    await api.hang_up_after("POST", "/scored_data", group(4, mark=3))
    assert await api.trained(generation) == [1]
    assert await api.post("/scored_data", group(4, mark=3)) == {"status": "received"}
    assert (await api.get("/status"))["queue_size"] == 2
    await api.end()


# --- the latest example ---------------------------------------------------------------


async def test_a_large_example_is_read_from_the_store_until_it_is_freed(api):
    text = random.Random(0).randbytes(400_000).hex()  # compression takes half
    large = group(4, metadata={"text": text})
    generation = await api.registered()
    await api.post("/scored_data", large)
    reply = await api.http.get("/latest_example")
    assert reply.json()["metadata"]["text"] == text
    assert reply.headers["content-length"] == str(len(reply.content))
    await api.trained(generation)
    assert (await api.get("/latest_example"))["tokens"] == []


async def test_an_idempotency_key_with_a_nul_is_refused(api):
    reply = await api.http.post("/scored_data", json=group(idempotency_key="a\0b"))
    assert reply.status_code == 422 and "idempotency_key" in reply.json()["detail"]
    bad = json.dumps([group(), group(idempotency_key="k" * 300)])
    reply = await api.http.post("/groups", content=bad)
    assert reply.status_code == 422
    assert marks(await api.get("/batch")) == []
