"""atropos api dead against a real API, and without one."""

from __future__ import annotations

import pytest

from atroposlib.api.server import create_app
from atroposlib.cli.operate import dead
from atroposlib.run_status.polling import URL_VARIABLE
from tests.serving import served


def test_an_absent_api_is_exit_status_3_with_the_remedy(capsys):
    assert dead.main(["--api-url", "http://127.0.0.1:1"]) == 3
    error = capsys.readouterr().err
    assert "127.0.0.1:1" in error and "atropos api serve" in error
    assert len(error.splitlines()) <= 3


def test_the_address_comes_from_the_environment_where_no_flag_names_it(monkeypatch, capsys):
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:2")
    assert dead.main([]) == 3
    assert "127.0.0.1:2" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        dead.main(["--nonsense"])


def test_dead_batches_are_listed_revived_and_dropped(capsys):
    with served(create_app()) as url:
        api = ["--api-url", url]
        assert dead.main(api) == 0 and dead.main(["revive", "3", *api]) == 0
        assert capsys.readouterr().out == "no batch is dead\nbatch 3: not dead\n"
        with pytest.raises(SystemExit):
            dead.main(["drop", *api])
