"""Looks over HTTP: a real API, absent and foreign ones, and addresses of run folders."""

from __future__ import annotations

import socket

import httpx
import pytest

from atroposlib.api.server import create_app
from atroposlib.doctor import looks
from atroposlib.doctor.looks import Silent, address_in, document, look
from tests.api.harness import TRAINER
from tests.serving import served


@pytest.fixture(autouse=True)
def every_answer_is_waited_for(monkeypatch):
    for name in ("API_TIMEOUT_S", "SERVER_TIMEOUT_S"):
        monkeypatch.setattr(looks, name, 600.0)


def test_a_look_has_status_counters_and_the_time_of_the_api():
    with served(create_app()) as url:
        found = look(url)
    assert found.status is not None and found.status["state"] == "EMPTY"
    assert found.problem == "" and found.answer_s > 0
    assert any(one.name == "http_requests_total" for one in found.metrics)


def test_an_absent_api_is_a_problem_with_its_reason():
    found = look("http://127.0.0.1:1")
    assert found.status is None and "refused" in found.problem


def test_a_frozen_api_is_told_from_an_absent_one(monkeypatch):
    monkeypatch.setattr(looks, "API_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts, never answers
        found = look(f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert "no answer within 0.05 s" in found.problem


def test_another_program_at_the_address_is_a_problem():
    with served(create_app()) as url:
        with pytest.raises(Silent, match="status 404"):
            document(f"{url}/no_such_route", 600.0)
        with pytest.raises(Silent, match="no JSON"):
            document(f"{url}/docs", 600.0)


def test_a_started_run_at_another_address_is_seen(monkeypatch):
    with served(create_app()) as url, served(create_app()) as other:
        httpx.post(f"{other}/register", json=TRAINER)
        httpx.get(f"{other}/batch")
        monkeypatch.setattr(looks, "DEFAULT_URL", other)
        assert look(url).elsewhere == (other,)


def test_the_address_of_a_run_is_in_the_files_of_its_launcher(tmp_path):
    assert address_in(tmp_path) is None
    (tmp_path / "commands.txt").write_text("x --atropos-url http://127.0.0.1:41 --seed 0\n")
    assert address_in(tmp_path) == "http://127.0.0.1:41"
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch/wiring.yaml").write_text('{\n  "atropos_url": "http://h:42",\n}')
    assert address_in(tmp_path) == "http://h:42"


@pytest.mark.parametrize("url", ["http://[", "x", "http://h:99999", "http://127.0.0.1:1/\x00"])
def test_an_address_that_is_none_is_no_answer(url):
    with pytest.raises(Silent):
        looks.get(url, 0.2)
