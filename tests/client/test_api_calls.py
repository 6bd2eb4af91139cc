"""Requests of calls: method, path, body, timeout. Meaning of answers."""

from __future__ import annotations

import json

import httpx
import pytest

from atroposlib.client import AsyncRolloutClient, RolloutClient
from atroposlib.client.api_calls import (
    BEST_EFFORT_TIMEOUT_S,
    ApiCall,
    RetryLater,
    interpret,
    model,
)
from atroposlib.errors import (
    Forbidden,
    KeyConflict,
    NotRegistered,
    RolloutApiRefused,
    StaleGeneration,
    Unauthorized,
    UnknownEnv,
)
from atroposlib.wire import EnvIdentifier, RegisterEnv, RunStatus
from tests.client.harness import URL


class Recorder(httpx.MockTransport):
    """Gives the answers of ``answers`` by path, 200 {} else; ``sent`` lists the requests."""

    def __init__(self, **answers: httpx.Response) -> None:
        self.sent: list[httpx.Request] = []
        self._answers = answers
        super().__init__(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        name = request.url.path.strip("/").replace("-", "_")
        return self._answers.get(name, httpx.Response(200, json={}))


async def test_an_admission_and_its_release_have_the_same_id():
    granted = {"admission_id": "a", "granted": 4, "credit_bytes": 1}
    api = Recorder(admission=httpx.Response(200, json=granted))
    async with AsyncRolloutClient(URL, transport=api) as env:
        await env.request_admission(EnvIdentifier(env_id=0), 4, admission_id="a")
        await env.release_admission("a")
    asked, ended = api.sent
    assert (asked.method, asked.url.path) == ("POST", "/admission")
    assert json.loads(asked.content)["admission_id"] == "a"
    assert (ended.url.path, json.loads(ended.content)) == (
        "/admission/release",
        {"admission_id": "a"},
    )
    assert ended.extensions["timeout"]["read"] == BEST_EFFORT_TIMEOUT_S


def test_the_timeout_of_a_claim_exceeds_its_wait_at_the_api():
    api = Recorder()
    with RolloutClient(URL, transport=api, timeout_s=60.0) as trainer:
        trainer.adopt_generation(1)
        trainer.claim(wait_s=5.0, binary=True)
        trainer.claim(wait_s=5.0)
    binary, plain = api.sent
    assert binary.extensions["timeout"]["read"] == 65.0
    assert binary.headers["accept"] == "application/x-atropos-groups"
    assert plain.headers["accept"] == "*/*"


def test_the_path_of_a_shard_contains_its_rank():
    api = Recorder()
    with RolloutClient(URL, transport=api) as trainer:
        trainer.adopt_generation(2)
        trainer.shard(7, 3, 1)
    (sent,) = api.sent
    path = sent.url.raw_path.decode()
    assert (sent.method, path) == ("GET", "/batches/7/shards/1?generation=2&epoch=3")


async def test_the_original_form_of_status_env_contains_only_the_id():
    api = Recorder(status_env=httpx.Response(405))
    async with AsyncRolloutClient(URL, transport=api) as env:
        with pytest.raises(RolloutApiRefused):
            await env.status_env(EnvIdentifier(env_id=3, run_id="r"))
    assert (api.sent[1].method, json.loads(api.sent[1].content)) == ("GET", {"env_id": 3})


async def test_an_environment_has_not_joined_before_the_trainer_starts():
    body = RegisterEnv(max_token_length=8, desired_name="e", weight=1.0, group_size=2)
    waits = httpx.Response(200, json={"status": "wait for trainer to start"})
    async with AsyncRolloutClient(URL, transport=Recorder(register_env=waits)) as env:
        assert await env.register_env(body) is None
    odd = httpx.Response(200, text="not JSON")
    async with AsyncRolloutClient(URL, transport=Recorder(register_env=odd)) as env:
        with pytest.raises(RolloutApiRefused, match="not one of a rollout API"):
            await env.register_env(body)


# --- answers -----------------------------------------------------------------------------


def answer(code, **answer):
    return interpret(
        ApiCall("GET", "/status", model(RunStatus)), httpx.Response(code, **answer)
    )


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        (401, "unauthorized", Unauthorized),
        (403, "forbidden", Forbidden),
        (404, "unknown_env", UnknownEnv),
        (409, "fenced", StaleGeneration),
        (409, "not_registered", NotRegistered),
        (409, "key_conflict", KeyConflict),
        (422, "", RolloutApiRefused),
    ],
)
def test_a_rejection_is_raised_as_a_typed_error_with_the_detail_of_the_api(
    code, status, error
):
    with pytest.raises(error, match="because"):
        answer(code, json={"status": status, "detail": "because"})


def test_a_404_without_an_env_is_a_rejection_and_does_not_require_registration():
    with pytest.raises(RolloutApiRefused, match="404.*Not Found"):
        answer(404, json={"detail": "Not Found"})


def test_an_error_without_json_is_quoted():
    with pytest.raises(RolloutApiRefused, match="418.*teapot"):
        answer(418, text="teapot")


def test_a_success_with_another_body_is_refused():
    with pytest.raises(RolloutApiRefused, match="not one of a rollout API"):
        answer(200, text="<html>welcome</html>")


def test_a_redirect_is_named_and_not_followed():
    with pytest.raises(RolloutApiRefused, match="use the final URL"):
        answer(307, headers={"location": "http://elsewhere/status"})


def test_temporary_errors_are_retried_later():
    assert answer(503, json={"detail": "no room"}) == RetryLater("HTTP 503 no room")
    assert answer(408, json={"detail": "slow"}) == RetryLater("HTTP 408 slow")
    full = answer(429, json={"detail": "full"}, headers={"retry-after": "7"})
    assert full == RetryLater("HTTP 429 full", 7.0)
    odd = answer(429, headers={"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"})
    assert odd == RetryLater("HTTP 429")
