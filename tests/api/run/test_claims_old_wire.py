"""GET /batch: a replaced trainer, several replicas, replies that nobody read."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from atroposlib.api.common.records import ReplyState
from atroposlib.api.store.sql.ack import ClaimInTurn, last_turn
from tests.api.guards.test_slow_clients import serving
from tests.api.harness import ENV, group, marks


async def refused(api):
    reply = await api.http.get("/batch")
    return reply.status_code, reply.json().get("status")


@pytest.mark.parametrize("claims_first", [False, True])
async def test_a_replaced_old_trainer_takes_nothing_from_one_that_claims(api, claims_first):
    await api.registered()
    assert marks(await api.get("/batch")) == []
    await api.post("/scored_data_list", [group(4, mark=mark) for mark in range(1, 5)])
    generation = await api.registered(commits=not claims_first)
    first = await api.claim(generation)
    assert await refused(api) == (409, "fenced")
    await api.ack(first, generation)
    rest = [await api.trained(generation) for _ in range(4)]
    assert (marks(first), rest) == ([1], [[2], [3], [4], None])
    page = (await api.http.get("/metrics")).text
    assert 'atropos_requests_refused_total{reason="fenced"} 1.0' in page
    assert "fenced" in [event.kind for event in api.service.events._ring]


async def test_an_old_trainer_that_registers_last_is_served(api):
    generation = await api.registered(commits=True)
    await api.claim(generation)
    await api.registered()
    await api.post("/scored_data", group(4))
    assert marks(await api.get("/batch")) == [1]


async def test_a_get_whose_run_changes_meanwhile_is_answered(api):
    await api.started()
    await api.post("/scored_data", group(4))
    service, loop = api.service, asyncio.get_running_loop()
    do, envs = service.context.store.do, iter(range(2))

    def do_after_a_registration(operation):
        if isinstance(operation, ClaimInTurn) and next(envs, None) is not None:
            joined = api.post("/register-env", ENV)
            asyncio.run_coroutine_threadsafe(joined, loop).result(600)
        return do(operation)

    service.context.store.do = do_after_a_registration
    assert marks(await api.get("/batch")) == [1]


@pytest.mark.parametrize("pause_s", [0.0, 0.02, 0.3])
async def test_an_old_trainer_at_changing_replicas_gets_each_group_once(replicas, pause_s):
    await replicas[0].registered()
    await replicas[0].post("/scored_data_list", [group(4, mark=m) for m in range(1, 13)])
    got = []
    for i in range(12):
        got += marks(await replicas[i % 2].get("/batch"))
        await asyncio.sleep(pause_s)
    assert got == list(range(1, 13))


async def test_a_replica_that_died_while_it_sent_a_batch_leaves_it_to_the_other(replicas):
    one, other = replicas
    await one.registered()
    await one.post("/scored_data_list", [group(4, mark=1), group(4, mark=2)])
    one.service.legacy_batches.end = never  # it dies with the reply half sent
    assert marks(await one.get("/batch")) == [1]
    assert [marks(await other.get("/batch")) for _ in range(2)] == [[1], [2]]


async def never(*_):
    pass


async def test_keyless_posts_given_up_at_one_replica_are_absorbed_at_the_other(replicas):
    one, other = replicas
    await one.registered()
    for mark in range(10):
        await one.hang_up_after("POST", "/scored_data", group(mark=mark))
        again = await other.post("/scored_data", group(mark=mark))
        assert again == {"status": "received", "duplicate": True}
    assert await other.post("/scored_data", group(mark=0)) == {"status": "received"}
    assert (await other.get("/status"))["queue_size"] == 11


async def test_equal_groups_posted_to_changing_replicas_are_all_kept(replicas):
    await replicas[0].registered()
    for i in range(10):
        reply = await replicas[i % 2].post("/scored_data", group())
        assert reply == {"status": "received"}


async def test_equal_groups_posted_before_and_after_a_restart_are_all_kept(durable):
    for i in range(8):
        if i == 3:
            await durable.restart()
        assert await durable.post("/scored_data", group()) == {"status": "received"}
    assert (await durable.get("/status"))["queue_size"] == 8


async def test_a_batch_that_a_dead_trainer_never_read_is_delivered_again(api):
    await api.registered()
    await api.post("/scored_data_list", [group(4, mark=1), group(4, mark=2)])
    async with serving(api.app) as (_, port):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"GET /batch HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        while (await api.get("/status"))["batches_open"] == 0 or client_waits(client):
            await asyncio.sleep(0.01)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()  # a reset, as of a process that died with unread bytes
        while api.service.store.ask(last_turn).reply is not ReplyState.LOST:
            await asyncio.sleep(0.01)
        assert marks(await api.get("/batch")) == [1]
    assert marks(await api.get("/batch")) == [2]


def client_waits(client):
    """Whether the reply has not arrived; reads nothing."""
    client.setblocking(False)
    try:
        return not client.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
