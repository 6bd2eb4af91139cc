"""atropos account over a stored run, and its table."""

from __future__ import annotations

import json

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from atroposlib.api.server import create_app
from atroposlib.cli.operate import print_account
from atroposlib.cli.operate.print_account import account_table, main, read_account, server_line
from atroposlib.errors import ConfigError
from atroposlib.wire.explore import AccountLine, RunAccount
from tests.serving import served


def test_rows_that_no_process_reported_count_as_returned(run, capsys):
    assert main([str(run), "--json", "--by", "env"]) == 0
    account = json.loads(capsys.readouterr().out)
    assert account["generated"] == account["trained"] > 0
    assert (account["processes"], account["unknown"]) == (0, 0)
    assert main([str(run)]) == 0
    assert "useful: 100.0%" in capsys.readouterr().out


def test_a_live_run_is_read_by_its_address_again_until_an_interrupt(capsys, monkeypatch):
    pauses = iter([None, KeyboardInterrupt])

    def pause(seconds):
        assert seconds == print_account.APART_S
        if (end := next(pauses)) is not None:
            raise end

    monkeypatch.setattr(print_account.time, "sleep", pause)
    with served(create_app()) as url, pytest.raises(KeyboardInterrupt):
        main(["--api-url", url, "--live", "--json"])
    accounts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [account["generated"] for account in accounts] == [0, 0]


def test_an_address_without_an_api_is_an_error_that_says_what_to_do():
    with pytest.raises(ConfigError, match="start a rollout API, or give the folder of a run"):
        main(["--api-url", "http://127.0.0.1:1"])


def test_the_count_of_the_servers_is_compared(run, capsys):
    generated = read_account(run, "", "").generated

    async def info(request):
        return JSONResponse({"generated_tokens_total": generated + 7})

    with served(Starlette(routes=[Route("/server_info", info)])) as url:
        assert main([str(run), "--server", url]) == 0
        assert "7 more than processes reported" in capsys.readouterr().out
        assert main([str(run), "--server", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["generated_by_servers"] == generated + 7


def test_servers_that_count_less_restarted_or_are_not_all_named(run):
    assert "fewer than the run got" in server_line(read_account(run, "", ""), 0)


def test_a_table_names_older_and_unknown_versions():
    lines = [
        AccountLine(state="trained", tokens=30, samples=3, version=-2),
        AccountLine(state="helper", tokens=10, samples=0, version=-1),
    ]
    account = RunAccount(
        generated=40,
        supplied=0,
        trained=30,
        useful=0.75,
        moving=0,
        unknown=5,
        processes=1,
        lines=lines,
    )
    rows = [line.split() for line in account_table(account, "version").splitlines()]
    assert rows[1] == ["older", "trained", "30", "3", "75.0%"]
    assert rows[2] == ["-", "helper", "10", "0", "25.0%"]
    assert rows[3] == ["unknown", "5"]
