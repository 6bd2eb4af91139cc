"""Polls over HTTP: a real API, absent and foreign ones, and addresses of run folders."""

from __future__ import annotations

import socket

import httpx
import pytest

from atroposlib.api.server import create_app
from atroposlib.run_status import polling
from atroposlib.run_status.polling import Silent, address_in, poll
from tests.api.harness import TRAINER
from tests.serving import served


@pytest.fixture(autouse=True)
def every_answer_is_waited_for(monkeypatch):
    for name in ("API_TIMEOUT_S", "ELSEWHERE_TIMEOUT_S"):
        monkeypatch.setattr(polling, name, 600.0)


def test_a_report_has_status_verdict_and_the_time_of_the_api():
    with served(create_app()) as url:
        report = poll(url)
    assert report.status is not None and report.status["state"] == "EMPTY"
    assert report.verdict["state"] == "waiting" and report.at > 1e9
    assert report.verdict["line"].startswith("no trainer has registered")


def test_an_absent_api_is_unreachable_with_its_reason():
    report = poll("http://127.0.0.1:1")
    assert report.status is None and report.verdict["state"] == "unreachable"
    assert "refused" in report.verdict["line"] and not report.refused


def test_a_frozen_api_is_told_from_an_absent_one(monkeypatch):
    monkeypatch.setattr(polling, "API_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts, never answers
        report = poll(f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert "no answer within 0.05 s" in report.verdict["line"]


# Problem of the address -> words of the verdict: an API that refuses a caller is at work.
@pytest.mark.parametrize(
    ("problem", "cause", "remedy"),
    [
        ("status 401: {}", "wants a token", "ATROPOS_API_TOKEN"),
        ("status 403: {}", "no right to read", "scope read"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed", "not trusted", "SSL_CERT_FILE"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version", "without TLS", "http://"),
        (
            "the answer is no JSON: another program listens there",
            "another program",
            "--api-url",
        ),
        ("[Errno 111] Connection refused", "does not answer", "atropos api serve"),
    ],
)
def test_a_refusal_is_named_as_that(monkeypatch, problem, cause, remedy):
    def refuse(url, timeout_s, token=None):
        raise Silent(problem)

    monkeypatch.setattr(polling, "get", refuse)
    verdict = poll("http://h:1").verdict
    assert verdict["state"] == "unreachable" and verdict["processes"] == ()
    assert cause in verdict["line"] and remedy in verdict["remedy"]


def test_another_program_at_the_address_is_named():
    with served(create_app()) as url:
        assert "status 404" in poll(f"{url}/no_such_route").verdict["line"]


def test_a_run_at_another_address_explains_the_wait_for_a_trainer(monkeypatch):
    beat = {"role": "env", "name": "e-0a1b2c", "phase": "waiting for trainer"}
    with served(create_app()) as url, served(create_app()) as other:
        httpx.post(f"{other}/register", json=TRAINER)
        httpx.get(f"{other}/batch")
        httpx.post(f"{url}/heartbeat", json={**beat, "waiting_on": None})
        monkeypatch.setattr(polling, "DEFAULT_URL", other)
        verdict = poll(url).verdict
    assert verdict["state"] == "stuck" and verdict["findings"][0]["key"] == "two-apis"
    assert f"{other}: STARTED" in verdict["findings"][0]["evidence"]


def test_the_address_of_a_run_is_in_the_files_of_its_launcher(tmp_path):
    assert address_in(tmp_path) is None
    (tmp_path / "commands.txt").write_text("x --atropos-url http://127.0.0.1:41 --seed 0\n")
    assert address_in(tmp_path) == "http://127.0.0.1:41"
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch/wiring.yaml").write_text('{\n  "atropos_url": "http://h:42",\n}')
    assert address_in(tmp_path) == "http://h:42"


def test_the_address_of_a_run_on_a_cluster_is_in_the_file_that_its_api_writes(tmp_path):
    (tmp_path / "launch/endpoints").mkdir(parents=True)
    file = "file:///elsewhere/launch/endpoints/api"
    (tmp_path / "launch/wiring.yaml").write_text(f'{{"atropos_url": "{file}"}}')
    assert address_in(tmp_path) is None
    (tmp_path / "launch/endpoints/api").write_text("http://node7:8000\n")
    assert address_in(tmp_path) == "http://node7:8000"


@pytest.mark.parametrize("url", ["http://[", "x", "http://h:99999", "http://127.0.0.1:1/\x00"])
def test_an_address_that_is_none_is_no_answer(url):
    with pytest.raises(Silent):
        polling.get(url, 0.2)
