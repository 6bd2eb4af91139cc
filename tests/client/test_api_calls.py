"""Requests of calls, meaning of answers, pauses between attempts, connection settings."""

from __future__ import annotations

import json
import logging

import httpx
import pytest

from atroposlib.api.server import create_app
from atroposlib.api.store import open_store
from atroposlib.client import AsyncRolloutClient, RolloutClient, api_calls
from atroposlib.client.api_calls import (
    BEST_EFFORT_TIMEOUT_S,
    ApiCall,
    ConnectionSettings,
    RetryLater,
    RetryPolicy,
    Timing,
    interpret,
    model,
)
from atroposlib.errors import (
    ConfigError,
    Forbidden,
    KeyConflict,
    NotRegistered,
    RolloutApiRefused,
    RolloutApiUnavailable,
    StaleGeneration,
    Unauthorized,
    UnknownEnv,
)
from atroposlib.utils.backoff import Backoff
from atroposlib.wire import ClaimedBatch, EnvIdentifier, Heartbeat, RegisterEnv, RunStatus
from tests.client.harness import URL
from tests.serving import served


def settings(give_up_after_s=1.0, on_wait=lambda _: None, url=URL, **timing):
    return ConnectionSettings(url, 1.0, give_up_after_s, on_wait, None, Timing(**timing))


BEAT = Heartbeat(role="env", name="e_0", phase="rollout")
TOKEN = "s3cret-of-the-trainer"


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


# --- pauses -----------------------------------------------------------------------------


def test_calls_to_an_unreachable_api_are_logged_and_retried_until_the_deadline():
    now, waits = [0.0], []
    waiting = RetryPolicy(settings(60.0, waits.append, clock=lambda: now[0]))
    pauses = []
    with pytest.raises(RolloutApiUnavailable, match="gave up after 60 s"):
        while True:
            pauses.append(waiting.pause_after(RetryLater("connection refused")))
            now[0] += pauses[-1]
    assert max(pauses) <= 5.0 and abs(sum(pauses) - 60.0) < 1e-6
    assert waits[0] == (
        f"waiting for rollout API at {URL}: connection refused, 0 s of at most 60 s"
    )


def test_the_retry_after_pause_is_respected_up_to_the_deadline():
    now = [0.0]
    waiting = RetryPolicy(settings(60.0, clock=lambda: now[0]))
    assert waiting.pause_after(RetryLater("full", 7.0)) == 7.0
    now[0] = 57.0
    assert waiting.pause_after(RetryLater("full", 7.0)) == 3.0
    assert RetryPolicy(settings(1e6)).pause_after(RetryLater("full", 1e5)) == 60.0


def test_without_an_api_best_effort_calls_return_and_other_calls_raise():
    with RolloutClient(URL, give_up_after_s=0) as client:
        client.heartbeat(BEAT)
        assert client.health() is False
        with pytest.raises(RolloutApiUnavailable, match="connection refused"):
            client.status()


def test_calls_about_batches_need_a_registration():
    with RolloutClient(URL) as client:
        with pytest.raises(NotRegistered):
            client.claim()
        with pytest.raises(ValueError, match="no batch"):
            client.ack(ClaimedBatch())


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", ""])
def test_the_error_of_an_invalid_url_names_it(url):
    with pytest.raises(ConfigError, match="no URL"):
        RolloutClient(url)


# --- tokens ------------------------------------------------------------------------------


def authorization_of(client: RolloutClient, sent: list[httpx.Request]) -> str | None:
    client.health()
    return sent[-1].headers.get("authorization")


def test_the_token_is_read_from_the_argument_or_the_environment_variable(monkeypatch):
    sent: list[httpx.Request] = []

    def answer(request):
        sent.append(request)
        return httpx.Response(200)

    transport = httpx.MockTransport(answer)
    assert authorization_of(RolloutClient(URL, transport=transport), sent) is None
    monkeypatch.setenv("ATROPOS_API_TOKEN", TOKEN)
    assert authorization_of(RolloutClient(URL, transport=transport), sent) == f"Bearer {TOKEN}"
    other = RolloutClient(URL, transport=transport, token="other")
    assert authorization_of(other, sent) == "Bearer other"
    assert authorization_of(RolloutClient(URL, transport=transport, token=""), sent) is None


def test_a_token_is_not_sent_to_another_address(monkeypatch):
    sent: list[httpx.Request] = []

    def answer(request):
        sent.append(request)
        return httpx.Response(302, headers={"location": "http://elsewhere/status"})

    client = RolloutClient(URL, token=TOKEN, transport=httpx.MockTransport(answer))
    with pytest.raises(RolloutApiRefused, match="final URL"):
        client.status()
    assert [request.url.host for request in sent] == ["127.0.0.1"]


def test_a_token_appears_in_no_log_and_no_error(caplog):
    caplog.set_level(logging.DEBUG)

    def answer(request):
        return httpx.Response(401, json={"status": "unauthorized", "detail": "no"})

    client = RolloutClient(URL, token=TOKEN, transport=httpx.MockTransport(answer))
    with pytest.raises(Unauthorized, match="ATROPOS_API_TOKEN") as refused:
        client.status()
    assert TOKEN not in caplog.text + str(refused.value) + repr(client)


def test_a_token_with_invalid_characters_is_rejected_without_being_shown():
    with pytest.raises(ConfigError, match="ATROPOS_API_TOKEN") as refused:
        RolloutClient(URL, token="line\nbreak")
    assert "break" not in str(refused.value)


def test_a_private_authority_is_used_for_https_only(monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert settings(url="https://api").verify() is True
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    assert settings(url="http://api").verify() is True
    with pytest.raises(FileNotFoundError):
        settings(url="https://api").verify()


def test_an_address_in_a_file_is_read_again_after_a_failed_call(tmp_path, monkeypatch):
    monkeypatch.setattr(api_calls, "BACKOFF", Backoff(0.0, 0.0))
    file, waits = tmp_path / "an api", []
    file.write_text(f"{URL}\n")
    with served(create_app(open_store("memory"))) as url:

        def note(wait):
            waits.append(wait)
            file.write_text("" if len(waits) == 1 else f"{url}\n")  # first half written

        with RolloutClient(file.as_uri(), give_up_after_s=300, on_wait=note) as client:
            assert client.status().current_step == 0
    assert len(waits) == 2 and all(URL in wait for wait in waits)


def test_a_best_effort_call_reads_the_address_again_for_the_next_one(tmp_path):
    file = tmp_path / "api"
    file.write_text(URL)
    with served(create_app(open_store("memory"))) as url:
        with RolloutClient(file.as_uri()) as client:
            file.write_text(url)
            assert [client.health(), client.health()] == [False, True]


def test_a_file_without_an_address_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="nothing"):
        settings(url=(tmp_path / "nothing").as_uri())
    (tmp_path / "api").write_text("localhost:8000")
    with pytest.raises(ConfigError, match="localhost:8000"):
        settings(url=(tmp_path / "api").as_uri())


def test_pauses_grow():
    waiting = RetryPolicy(settings(60.0, uniform=lambda: 1.0))
    pauses = [waiting.pause_after(RetryLater("full")) for _ in range(3)]
    assert pauses == pytest.approx([0.2, 0.4, 0.8])


def test_no_pause_goes_past_the_deadline():
    now = [100.0]
    waiting = RetryPolicy(settings(10.0, clock=lambda: now[0], uniform=lambda: 1.0))
    now[0] += 9.9
    assert waiting.pause_after(RetryLater("full")) == pytest.approx(0.1)
    now[0] += 0.2
    with pytest.raises(RolloutApiUnavailable):
        waiting.pause_after(RetryLater("full"))


def test_a_pause_named_by_the_server_is_kept_without_jitter():
    def pause(limit_s, at_least_s):
        policy = RetryPolicy(settings(limit_s))
        return policy.pause_after(RetryLater("full", at_least_s))

    assert pause(1e6, 30.0) == 30.0
    assert pause(7.0, 30.0) == pytest.approx(7.0)
    assert 0.1 <= pause(1e6, 0.05) <= 0.2
