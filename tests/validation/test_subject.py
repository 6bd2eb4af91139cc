"""The environment under validation: other machines are refused, messages are read as text."""

from __future__ import annotations

import socket

import pytest

from atroposlib.validation.report import Report
from atroposlib.validation.subject import Case, Played, Subject, no_network, text_of


def test_connections_to_other_machines_are_refused_and_listed():
    refused = []
    with no_network(refused), socket.create_server(("127.0.0.1", 0)) as here:
        socket.create_connection(here.getsockname()).close()
        with pytest.raises(ConnectionRefusedError, match="192.0.2.1"):
            socket.create_connection(("192.0.2.1", 80))
    assert "192.0.2.1" in refused
    assert socket.getaddrinfo("127.0.0.1", 80)


def test_a_prompt_is_the_text_of_its_messages():
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    parts = {"role": "user", "content": [picture, {"type": "text", "text": "What?"}]}
    assert text_of(parts).strip() == "What?" and text_of({"content": None}) == ""
    case = Case(
        "a", {}, ("think", "answer"), ({"role": "system", "content": "Be brief."}, parts)
    )
    assert case.prompt.startswith("Be brief.") and case.ending("no") == ["think", "no"]


def test_a_slow_environment_plays_fewer_tasks_and_its_report_says_so():
    def rollout(seconds):
        return Played(Case("a", {}), "", "", 1.0, seconds=seconds)

    quick = Subject(None, None, None, played=[rollout(0.05)])
    slow = Subject(None, None, None, played=[rollout(0.1), rollout(0.3)])
    assert (quick.few(32), slow.few(32)) == (32, 16)
    assert "fewer tasks" not in Report("sums", slow_s=quick.slow_s).table()
    said = Report("sums", slow_s=slow.slow_s).table()
    assert said.endswith("a rollout takes 0.2 s, so fewer tasks were played")
