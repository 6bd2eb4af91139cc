"""The verdict on a folder: of its API while the run goes on, else of its files."""

from __future__ import annotations

import json
import os
import socket

import pytest

from atroposlib.api.server import create_app
from atroposlib.run_status import polling
from atroposlib.workbench.run_folders import RunFiles, run_at
from atroposlib.workbench.run_verdict import is_held, is_trusted, run_verdict
from tests.serving import served
from tests.workbench.made_runs import make_run


def verdict_of(folder):
    run = run_at(str(folder))
    verdict, address = run_verdict(run, RunFiles(run))
    return verdict["state"], address


def running(folder, url):
    make_run(folder, state="running", items={"q": [1.0]})
    (folder / "launch/wiring.yaml").write_text(json.dumps({"atropos_url": url}, indent=1))
    return folder


@pytest.mark.parametrize("state", ["done", "stopped", "failed"])
def test_an_ended_run_is_not_asked_even_if_another_api_has_its_port(tmp_path, state):
    with served(create_app()) as url:
        folder = running(tmp_path / "a", url)
        outcome = json.dumps({"state": state, "steps": 3, "problem": "x"})
        (folder / "launch/outcome.json").write_text(outcome)
        assert verdict_of(folder) == (state, None)


def test_a_run_whose_api_answers_has_the_verdict_of_the_api(tmp_path):
    with served(create_app()) as url:
        folder = running(tmp_path / "a", url)
        assert verdict_of(folder) == ("waiting", url)  # no trainer has registered
    assert verdict_of(folder) == ("stopped", None)


def test_an_api_of_another_run_at_the_same_port_is_not_believed(tmp_path, monkeypatch):
    def another(url, timeout_s, token=None):
        return json.dumps({"run_id": "other", "verdict": {"state": "healthy"}}), 0.0

    monkeypatch.setattr(polling, "get", another)
    assert verdict_of(running(tmp_path / "a", "http://127.0.0.1:41")) == ("stopped", None)


def test_a_killed_launcher_is_known_by_the_process_that_it_named(tmp_path):
    here = socket.gethostname()
    holder = tmp_path / ".holder"
    assert not is_held(holder)
    for words, is_alive in (
        (f"process {os.getpid()} on {here}, since now", True),
        (f"process 999999999 on {here}, since now", False),
        ("process 999999999 on another-machine, since now", True),
        ("nonsense", True),
    ):
        holder.write_text(words)
        assert is_held(holder) is is_alive, words
    with served(create_app()) as url:
        folder = running(tmp_path / "a", url)
        (folder / ".holder").write_text(f"process 999999999 on {here}, since now")
        assert verdict_of(folder) == ("stopped", None)


def test_the_token_goes_to_this_machine_and_to_the_address_that_the_user_named(monkeypatch):
    assert is_trusted("http://127.0.0.1:8000") and is_trusted("http://localhost:1")
    assert not is_trusted("http://node7:8000") and not is_trusted("http://[")
    monkeypatch.setenv(polling.URL_VARIABLE, "http://node7:8000")
    assert is_trusted("http://node7:8001") and not is_trusted("http://evil.example")


def test_no_token_is_sent_to_an_address_that_nobody_named(tmp_path, monkeypatch):
    tokens = []

    def note(url, timeout_s, token=None):
        tokens.append(token)
        raise polling.Silent("refused")

    monkeypatch.setenv("ATROPOS_API_TOKEN", "secret")
    monkeypatch.setattr(polling, "get", note)
    verdict_of(running(tmp_path / "a", "http://evil.example:80"))
    assert tokens and set(tokens) == {None}
    verdict_of(running(tmp_path / "b", "http://127.0.0.1:9"))
    assert "secret" in tokens


def test_a_data_directory_alone_is_a_run_too(tmp_path):
    folder = make_run(tmp_path / "a", items={"q": [1.0]}) / "queue"
    assert verdict_of(folder) == ("stopped", None)
    (folder / ".holder").write_text(
        f"process {os.getpid()} on {socket.gethostname()}, since x"
    )
    assert verdict_of(folder) == ("unreachable", None)
