"""The clients of the rollout API over the real application, and their patience."""

from __future__ import annotations

import httpx
import msgspec
import pytest

from atroposlib import client_calls
from atroposlib.api.server import create_app
from atroposlib.client import AsyncRolloutClient, RolloutClient
from atroposlib.client_calls import Patience, answer, scored_data_list
from atroposlib.errors import (
    ConfigError,
    Fenced,
    KeyConflict,
    NotRegistered,
    RolloutApiRefused,
    RolloutApiUnavailable,
    UnknownEnv,
)
from atroposlib.wire import (
    ClaimedBatch,
    EnvIdentifier,
    Heartbeat,
    RegisterEnv,
    Registration,
    ScoredData,
)

URL = "http://127.0.0.1:9"  # nothing listens on the discard port
REGISTRATION = Registration(
    wandb_group="g",
    wandb_project="p",
    batch_size=2,
    max_token_len=64,
    checkpoint_dir="",
    save_checkpoint_interval=1,
    starting_step=0,
    num_steps=4,
)
ENV = RegisterEnv(max_token_length=64, desired_name="e", weight=1.0, group_size=2)
BEAT = Heartbeat(role="env", name="e_0", phase="rollout")


def group(**more):
    fields = {"tokens": [[1, 7]] * 2, "masks": [[-100, 7]] * 2, "scores": [0.5, 1.0]}
    return ScoredData(**fields | more)


@pytest.fixture
async def env():
    app = create_app()
    client = AsyncRolloutClient(URL, give_up_after_s=0)
    await client.close()
    client._http = httpx.AsyncClient(transport=httpx.ASGITransport(app))
    yield client
    await client.close()


async def start(env):
    """What a trainer does first; the trainer's own client is tested over a real socket."""
    await env._http.post(URL + "/register", json=REGISTRATION.model_dump())
    await env._http.get(URL + "/batch")


async def test_an_environment_joins_once_the_trainer_has_started(env):
    assert await env.wandb_info() == {"group": None, "project": None}
    assert await env.register_env(ENV) is None
    await start(env)
    assert await env.info() == {"batch_size": 2, "max_token_len": 64}
    me = await env.register_env(ENV)
    assert (me.env_id, me.wandb_name) == (0, "e_0")
    status = await env.status_env(EnvIdentifier(env_id=0, run_id=me.run_id))
    assert status.queue_size == 0
    with pytest.raises(UnknownEnv):
        await env.status_env(EnvIdentifier(env_id=0, run_id="other"))
    await env.heartbeat(BEAT)
    await env.disconnect_env(EnvIdentifier(env_id=0))


async def test_groups_are_sent_as_structs_or_dicts_and_the_callers_stay_unchanged(env):
    struct, plain = group(), msgspec.to_builtins(group())
    before = dict(plain)
    reply = await env.send_groups([struct, plain])
    assert (reply["status"], reply["groups_processed"]) == ("received", 2)
    assert struct.idempotency_key is None and plain == before


async def test_numpy_values_are_sent_as_numbers(env):
    numpy = pytest.importorskip("numpy")
    tokens = numpy.array([[1, 7], [1, 7]])
    await env.send_groups(
        [{"tokens": tokens, "masks": tokens, "scores": [numpy.float32(0.5), numpy.float64(1)]}]
    )


async def test_what_the_api_refuses_is_raised_as_what_it_is(env):
    with pytest.raises(RolloutApiRefused, match=r"422.*masks\[1\]"):
        await env.send_groups([group(masks=[[-100, 7], [7]])])
    with pytest.raises(UnknownEnv):
        await env.send_groups([group()], run_id="other")
    await env.send_groups([group(idempotency_key="k")])
    with pytest.raises(KeyConflict):
        await env.send_groups([group(idempotency_key="k", scores=[0.0, 0.0])])


def test_a_large_body_is_compressed_only_for_another_machine():
    big = [group(tokens=[[1] * 900] * 2)]
    assert "content-encoding" not in scored_data_list(big, ["k"], None, False).headers
    far = scored_data_list(big, ["k"], "run", True)
    assert far.headers["content-encoding"] == "gzip" and len(far.body) < 900
    assert far.headers["x-atropos-run-id"] == "run"


def test_an_absent_api_is_waited_for_within_the_bound_and_visibly(monkeypatch):
    now, waits = [0.0], []
    monkeypatch.setattr(client_calls.time, "monotonic", lambda: now[0])
    patience = Patience(URL, 60.0, waits.append)
    pauses = []
    with pytest.raises(RolloutApiUnavailable, match="gave up after 60 s"):
        while True:
            pauses.append(patience.pause_after("connection refused"))
            now[0] += pauses[-1]
    assert max(pauses) <= 5.0 and abs(sum(pauses) - 60.0) < 1e-6
    assert waits[0] == (
        f"waiting for rollout API at {URL}: connection refused, 0 s of at most 60 s"
    )


def test_without_an_api_best_effort_calls_return_and_the_others_give_up():
    client = RolloutClient(URL, give_up_after_s=0)
    client.heartbeat(BEAT)
    assert client.health() is False
    with pytest.raises(RolloutApiUnavailable, match="connection refused"):
        client.status()
    client.close()


def test_a_client_that_never_registered_is_told_to():
    client = RolloutClient(URL)
    with pytest.raises(NotRegistered):
        client.claim()
    with pytest.raises(ValueError, match="no batch to ack"):
        client.ack(ClaimedBatch())
    client.close()


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", ""])
def test_a_url_that_is_none_is_named(url):
    with pytest.raises(ConfigError, match="no URL"):
        RolloutClient(url)


def test_a_replaced_trainer_is_fenced():
    response = httpx.Response(409, json={"status": "fenced", "detail": "replaced"})
    with pytest.raises(Fenced, match="replaced"):
        answer(response)
    gone = httpx.Response(409, json={"status": "not_registered", "detail": "register"})
    with pytest.raises(NotRegistered):
        answer(gone)
    odd = httpx.Response(418, text="teapot")
    with pytest.raises(RolloutApiRefused, match="418.*teapot"):
        answer(odd)
