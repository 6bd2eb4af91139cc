"""Meaning of answers, pauses between attempts, and connection settings."""

from __future__ import annotations

import logging
import time

import httpx
import pytest

from atroposlib.client import RolloutClient, api_calls
from atroposlib.client.retry import (
    ConnectionSettings,
    Retrier,
    RetryLater,
    RetryPolicy,
    interpret,
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
from atroposlib.wire import ClaimedBatch, Heartbeat
from tests.client.harness import URL

BEAT = Heartbeat(role="env", name="e_0", phase="rollout")
BACKOFF = Backoff(initial_s=0.2, max_s=5.0)
TOKEN = "s3cret-of-the-trainer"


def answer(code, **answer):
    return interpret(api_calls.status(), httpx.Response(code, **answer))


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


# --- retry policy ----------------------------------------------------------------------


def test_calls_to_an_unreachable_api_are_logged_and_retried_until_the_deadline(monkeypatch):
    now, waits = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    waiting = RetryPolicy(URL, 60.0, waits.append)
    pauses = []
    with pytest.raises(RolloutApiUnavailable, match="gave up after 60 s"):
        while True:
            pauses.append(waiting.pause_after(RetryLater("connection refused")))
            now[0] += pauses[-1]
    assert max(pauses) <= 5.0 and abs(sum(pauses) - 60.0) < 1e-6
    assert waits[0] == (
        f"waiting for rollout API at {URL}: connection refused, 0 s of at most 60 s"
    )


def test_the_retry_after_pause_is_respected_up_to_the_deadline(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    waiting = RetryPolicy(URL, 60.0, lambda _: None)
    assert waiting.pause_after(RetryLater("full", 7.0)) == 7.0
    now[0] = 57.0
    assert waiting.pause_after(RetryLater("full", 7.0)) == 3.0
    assert RetryPolicy(URL, 1e6, lambda _: None).pause_after(RetryLater("full", 1e5)) == 60.0


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
    def settings(url):
        return ConnectionSettings(url, 1.0, 1.0, None, None)

    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert settings("https://api").verify() is True
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    assert settings("http://api").verify() is True
    with pytest.raises(FileNotFoundError):
        settings("https://api").verify()


def test_pauses_grow_until_a_reset():
    retrier = Retrier(BACKOFF)
    pauses = [retrier.pause_s(jitter=False) for _ in range(3)]
    retrier.reset()
    assert pauses + [retrier.pause_s(jitter=False)] == pytest.approx([0.2, 0.4, 0.8, 0.2])


def test_no_pause_goes_past_the_deadline(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    retrier = Retrier(BACKOFF, timeout_s=10.0)
    now[0] += 9.9
    assert not retrier.expired
    assert retrier.pause_s(jitter=False) == pytest.approx(0.1)
    now[0] += 0.2
    assert retrier.expired
    assert retrier.pause_s(jitter=False) == 0.0
    retrier.reset()
    assert not retrier.expired


def test_a_pause_named_by_the_server_is_kept_without_jitter():
    assert Retrier(BACKOFF).pause_s(at_least_s=30.0) == 30.0
    assert Retrier(BACKOFF, timeout_s=7.0).pause_s(at_least_s=30.0) == pytest.approx(7.0)
    assert 0.1 <= Retrier(BACKOFF).pause_s(at_least_s=0.05) <= 0.2
