"""The page of a run's status, and the command against a real API."""

from __future__ import annotations

import json

import pytest

from atroposlib.api.server import create_app
from atroposlib.cli import api_status
from atroposlib.wire import Participant
from atroposlib.wire.status import RunStatus
from tests.serving import served

STATUS = RunStatus(
    current_step=3,
    queue_size=2,
    state="STARTED",
    run_id="r",
    policy_version=3,
    queued_sequences=32,
    leased_sequences=16,
    buffered_sequences=0,
    batches_acked=3,
    blocked_reason="32 of 64 sequences queued",
    participants=[
        Participant(role="env", name="a\x1b[31mb", phase="rollout", waiting_on="x", age_s=2.2)
    ],
)


def test_the_page_names_every_process_and_what_it_waits_for():
    page = api_status.page("http://x", STATUS)
    assert page.splitlines() == [
        "http://x: STARTED, step 3, policy version 3",
        "32 sequences queued, 16 with the trainer; 3 batches acked, 0 open",
        "waits: 32 of 64 sequences queued",
        r"env       a\x1b[31mb: rollout, waits for x (2 s ago)",
    ]


def test_a_running_api_is_shown_as_text_and_as_json(capsys):
    with served(create_app()) as url:
        assert api_status.main(["--api-url", url]) == 0
        assert capsys.readouterr().out.startswith(f"{url}: EMPTY, step 0")
        assert api_status.main(["--api-url", url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == "EMPTY"


def test_an_absent_api_is_exit_status_3_with_the_remedy(capsys):
    assert api_status.main(["--api-url", "http://127.0.0.1:1"]) == 3
    error = capsys.readouterr().err
    assert "127.0.0.1:1" in error and "atropos api serve" in error
    assert len(error.splitlines()) <= 3


def test_the_address_comes_from_the_environment_where_no_flag_names_it(monkeypatch, capsys):
    monkeypatch.setenv(api_status.URL_VARIABLE, "http://127.0.0.1:2")
    assert api_status.main([]) == 3
    assert "127.0.0.1:2" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        api_status.main(["--nonsense"])


def test_dead_batches_are_listed_revived_and_dropped(capsys):
    with served(create_app()) as url:
        api = ["--api-url", url]
        assert api_status.dead(api) == 0 and api_status.dead(["revive", "3", *api]) == 0
        assert capsys.readouterr().out == "no batch is dead\nbatch 3: not dead\n"
        with pytest.raises(SystemExit):
            api_status.dead(["drop", *api])
