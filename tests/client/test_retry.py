"""Pauses between attempts, and connection settings."""

from __future__ import annotations

import logging
import time

import httpx
import pytest

from atroposlib.client import RolloutClient, retry
from atroposlib.client.api_calls import RetryLater
from atroposlib.client.retry import ConnectionSettings, RetryPolicy
from atroposlib.errors import (
    ConfigError,
    NotRegistered,
    RolloutApiRefused,
    RolloutApiUnavailable,
    Unauthorized,
)
from atroposlib.wire import ClaimedBatch, Heartbeat
from tests.client.harness import URL

BEAT = Heartbeat(role="env", name="e_0", phase="rollout")
TOKEN = "s3cret-of-the-trainer"


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


def test_pauses_grow(monkeypatch):
    monkeypatch.setattr(retry, "jittered", lambda pause: pause)
    waiting = RetryPolicy(URL, 60.0, lambda _: None)
    pauses = [waiting.pause_after(RetryLater("full")) for _ in range(3)]
    assert pauses == pytest.approx([0.2, 0.4, 0.8])


def test_no_pause_goes_past_the_deadline(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(retry, "jittered", lambda pause: pause)
    waiting = RetryPolicy(URL, 10.0, lambda _: None)
    now[0] += 9.9
    assert waiting.pause_after(RetryLater("full")) == pytest.approx(0.1)
    now[0] += 0.2
    with pytest.raises(RolloutApiUnavailable):
        waiting.pause_after(RetryLater("full"))


def test_a_pause_named_by_the_server_is_kept_without_jitter():
    def pause(limit_s, at_least_s):
        policy = RetryPolicy(URL, limit_s, lambda _: None)
        return policy.pause_after(RetryLater("full", at_least_s))

    assert pause(1e6, 30.0) == 30.0
    assert pause(7.0, 30.0) == pytest.approx(7.0)
    assert 0.1 <= pause(1e6, 0.05) <= 0.2
