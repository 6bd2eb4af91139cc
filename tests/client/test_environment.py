"""The environment's client over the real application: joining, sending, waiting, pacing."""

from __future__ import annotations

import asyncio
from itertools import count

import httpx
import msgspec
import pytest

from atroposlib.api.server import create_app
from atroposlib.api.store import open_store
from atroposlib.client import AsyncRolloutClient, api_calls
from atroposlib.errors import KeyConflict, RolloutApiRefused, RolloutApiUnavailable, UnknownEnv
from atroposlib.utils.backoff import Backoff
from atroposlib.wire import EnvIdentifier, Heartbeat, RegisterEnv
from tests.client.harness import URL, Lossy, Older, group, registration

ENV = RegisterEnv(max_token_length=64, desired_name="e", weight=1.0, group_size=2)
BEAT = Heartbeat(role="env", name="e_0", phase="rollout")
ROOM = 2000  # bytes of a queue that is soon full


@pytest.fixture
def app():
    app = create_app()
    yield app
    app.state.service.close()


@pytest.fixture(params=[False, True], ids=["json", "binary"])
async def env(app, request):
    async with client_of(app, binary=request.param) as client:
        yield client


def client_of(app, wrap=lambda inner: inner, **options):
    transport = wrap(httpx.ASGITransport(app))
    options = {"give_up_after_s": 0, **options}
    return AsyncRolloutClient(URL, transport=transport, **options)


async def call(app, method, path, **more):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=URL) as http:
        reply = await http.request(method, path, **more)
        return reply.json() if "json" in reply.headers["content-type"] else None


async def start(app, batch_size=2, **more):
    """Register a trainer and start the run."""
    body = registration(batch_size, **more).model_dump()
    generation = (await call(app, "POST", "/register", json=body))["generation"]
    await call(app, "POST", "/batches/claim", json={"generation": generation})
    return generation


async def batch(app, generation):
    """The groups of the next batch; it is acked."""
    held = {"generation": generation}
    got = await call(app, "POST", "/batches/claim", json=held)
    if got["batch"] is not None:
        held["epoch"] = got["epoch"]
        await call(app, "POST", f"/batches/{got['batch_no']}/ack", json=held)
    return got["batch"]


async def test_an_environment_registers_after_the_trainer_has_started(app, env):
    assert await env.wandb_info() == {"group": None, "project": None}
    assert await env.register_env(ENV) is None
    await start(app)
    assert await env.info() == {"batch_size": 2, "max_token_len": 64}
    me = await env.register_env(ENV)
    assert (me.env_id, me.wandb_name) == (0, "e_0")
    status = await env.status_env(EnvIdentifier(env_id=0, run_id=me.run_id))
    assert status.queue_size == 0
    with pytest.raises(UnknownEnv):
        await env.status_env(EnvIdentifier(env_id=0, run_id="other"))
    await env.heartbeat(BEAT)
    await env.disconnect_env(EnvIdentifier(env_id=0))


async def test_groups_are_sent_as_structs_or_dicts_and_the_arguments_stay_unchanged(app, env):
    generation = await start(app)
    struct, plain = group(1), msgspec.to_builtins(group(2))
    before = dict(plain)
    sent = await env.send_groups([struct, plain])
    assert (sent.accepted, sent.duplicates, sent.buffered) == (2, 0, 0)
    assert sent.policy_version == 0 and sent.credit_bytes
    assert struct.idempotency_key is None and plain == before
    marks = [(await batch(app, generation))[0]["tokens"][0][0] for _ in range(2)]
    assert marks == [1, 2]


async def test_numpy_values_are_sent_as_numbers(env):
    numpy = pytest.importorskip("numpy")
    tokens = numpy.array([[1, 7], [1, 7]])
    await env.send_groups(
        [{"tokens": tokens, "masks": tokens, "scores": [numpy.float32(0.5), numpy.float64(1)]}]
    )


async def test_rejections_of_the_api_are_raised_as_typed_errors(env):
    with pytest.raises(RolloutApiRefused, match=r"422.*masks"):
        await env.send_groups([group(masks=[[-100, 7], [7]])])
    with pytest.raises(UnknownEnv):
        await env.send_groups([group()], run_id="other")
    await env.send_groups([group(idempotency_key="k")])
    with pytest.raises(KeyConflict):
        await env.send_groups([group(idempotency_key="k", scores=[0.0, 0.0])])


@pytest.mark.parametrize("binary", [False, True])
async def test_a_post_whose_reply_was_lost_is_kept_once(app, binary):
    generation, waits = await start(app), []
    lossy = Lossy(httpx.ASGITransport(app), "/groups")
    async with client_of(
        app, lambda _: lossy, binary=binary, give_up_after_s=60, on_wait=waits.append
    ) as env:
        sent = await env.send_groups([group(1)])
    assert lossy.left == 0 and "peer closed" in waits[0]
    assert (sent.accepted, sent.duplicates) == (1, 1)
    assert len(await batch(app, generation)) == 1
    assert await batch(app, generation) is None


async def test_a_post_to_a_full_queue_is_logged_and_retried_until_the_trainer_makes_room(
    monkeypatch,
):
    monkeypatch.setattr(api_calls, "MAX_RETRY_AFTER_S", 0.01)
    app = create_app(open_store("memory", max_bytes=ROOM))
    generation, waits = await start(app), []

    def make_room(why):
        waits.append(why)
        tasks.append(asyncio.ensure_future(batch(app, generation)))

    async with client_of(app, on_wait=make_room, give_up_after_s=60) as env:
        tasks: list[asyncio.Future] = []
        for mark in count():
            assert (await env.send_groups([group(mark)])).accepted == 1
            if waits:
                break
        await asyncio.gather(*tasks)
    assert "HTTP 429" in waits[0]
    app.state.service.close()


async def test_a_post_to_a_queue_that_stays_full_fails_at_the_deadline():
    app = create_app(open_store("memory", max_bytes=ROOM))
    await start(app)
    async with client_of(app) as env:
        with pytest.raises(RolloutApiUnavailable, match="HTTP 429"):
            for mark in range(20):
                await env.send_groups([group(mark)])
    app.state.service.close()


@pytest.mark.parametrize("binary", [False, True])
async def test_groups_for_an_older_api_are_sent_in_its_format_after_one_probe(app, binary):
    older = Older(httpx.ASGITransport(app), "/groups", "/admission")
    async with client_of(app, lambda _: older, binary=binary) as env:
        for mark in (1, 2):
            sent = await env.send_groups([group(mark)])
            assert (sent.accepted, sent.credit_bytes) == (1, None)
        assert older.asked == ["/groups", "/scored_data_list", "/scored_data_list"]
        with pytest.raises(RolloutApiRefused, match="404"):
            await env.request_admission(EnvIdentifier(env_id=0), 2)


async def test_a_retried_admission_is_granted_once_after_lost_replies(app):
    await start(app, batch_size=4, max_staleness=0)
    lossy = Lossy(httpx.ASGITransport(app), "/admission")
    async with client_of(
        app, lambda _: lossy, give_up_after_s=60, on_wait=lambda _: None
    ) as env:
        me = await env.register_env(ENV)
        who = EnvIdentifier(env_id=me.env_id, run_id=me.run_id)
        first = await env.request_admission(who, 3)
        second = await env.request_admission(who, 3)
        assert (first.granted, second.granted) == (3, 1)
        third = await env.request_admission(who, 3)
        assert third.granted == 0 and third.blocked_reason
        await env.release_admission(first.admission_id)
        assert (await env.request_admission(who, 3)).granted == 3


async def test_groups_for_a_finished_run_raise_an_error_that_requires_registration(app, env):
    await start(app)
    me = await env.register_env(ENV)
    await call(app, "POST", "/reset_data")
    with pytest.raises(UnknownEnv):
        await env.send_groups([group(env_id=me.env_id)], run_id=me.run_id)


async def test_a_registration_whose_reply_is_lost_joins_once(app):
    await start(app)

    def losing(inner):
        return Lossy(inner, "/register-env")

    async with client_of(app, losing) as client:
        with pytest.raises(RolloutApiUnavailable):
            await client.register_env(ENV)
        first, second = await client.register_env(ENV), await client.register_env(ENV)
    assert first is not None and second is not None
    assert (first.env_id, second.env_id) == (0, 1)


async def test_a_wait_is_over_when_the_last_call_that_waited_ends(app, monkeypatch):
    """Two calls meet a dead API: the first that succeeds ends no wait of the second."""
    monkeypatch.setattr(api_calls, "BACKOFF", Backoff(initial_s=0.001, max_s=0.001))
    left, seen = {"/wandb_info": 1, "/info": 4}, []

    def answer(request):
        path = request.url.path
        left[path] -= 1
        return httpx.Response(503 if left[path] >= 0 else 200, json={"batch_size": 1})

    client = AsyncRolloutClient(
        URL,
        transport=httpx.MockTransport(answer),
        give_up_after_s=60,
        on_wait=lambda _: seen.append("waits"),
        on_continue=lambda: seen.append("goes on"),
    )
    await asyncio.gather(client.wandb_info(), client.info())
    assert seen == ["waits"] * 5 + ["goes on"]
    await client.wandb_info()
    assert seen.count("goes on") == 1  # a call that never waited ends nothing
    await client.close()
