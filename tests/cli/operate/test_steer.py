"""atropos api steer against a real API."""

from __future__ import annotations

import httpx
import pytest

from atroposlib.api.server import create_app
from atroposlib.cli.operate import steer
from atroposlib.errors import UnknownEnv
from tests.api.harness import ENV, TRAINER
from tests.serving import served


@pytest.fixture
def url():
    with served(create_app()) as url:
        httpx.post(f"{url}/register", json=TRAINER)
        httpx.get(f"{url}/batch")
        yield url


def _printed(capsys, url, *words):
    assert steer.main([*words, "--api-url", url]) == 0
    return capsys.readouterr().out


def test_weight_state_and_limit_are_set_shown_and_given_back(url, capsys):
    assert _printed(capsys, url) == "no environment has joined the run\n"
    httpx.post(f"{url}/register-env", json=ENV)
    plain = "e_0: running, weight 1, 0% of the trained tokens\n"
    assert _printed(capsys, url) == plain
    words = ["e", "pause", "--weight", "3", "--rollouts", "2"]
    expected = "e_0: paused, weight 3 (own 1), at most 2 rollouts, 0% of the trained tokens\n"
    assert _printed(capsys, url, *words) == expected
    back = ["e", "resume", "--weight", "own", "--rollouts", "own"]
    assert _printed(capsys, url, *back) == plain


def test_mistakes_are_told_and_change_nothing(url, capsys):
    httpx.post(f"{url}/register-env", json=ENV)
    mistakes = {
        ("--weight", "2"): "name the environment",
        ("e", "stop"): "invalid choice: 'stop'",
        ("e", "--weight", "much"): "argument --weight: a number above 0",
        ("e", "--weight", "0"): "argument --weight: a number above 0",
        ("e", "--rollouts", "0"): "argument --rollouts: a whole number from 1",
    }
    for words, message in mistakes.items():
        with pytest.raises(SystemExit):
            steer.main([*words, "--api-url", url])
        assert message in capsys.readouterr().err
    for words in (["f", "pause"], ["pause"]):
        with pytest.raises(UnknownEnv, match="there are: e"):
            steer.main([*words, "--api-url", url])
    assert "e_0: running" in _printed(capsys, url, "e")
    assert "running, weight 1" in _printed(capsys, url)
