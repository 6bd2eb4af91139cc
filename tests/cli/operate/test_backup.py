"""atropos api backup and restore as a user calls them, over a running API."""

from __future__ import annotations

import json
import urllib.request
from contextlib import closing

import pytest

from atroposlib.api.archive.load import open_explorer
from atroposlib.api.server import create_app
from atroposlib.api.store.postgres import PostgresStore
from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.cli.atropos import main
from tests.serving import served

TOKENS = [[1, 2, 3]] * 4
GROUP = {"tokens": TOKENS, "masks": TOKENS, "scores": [0.0, 1.0, 0.0, 1.0]}


def _run(*words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def _post(url, path, body):
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def test_a_running_api_is_backed_up_restored_and_read(tmp_path, capsys):
    data, copy, back = (str(tmp_path / name) for name in ("data", "copy", "back"))
    with served(create_app(SqliteStore(tmp_path / "data", archive_bytes=2**20))) as url:
        for _ in range(3):
            _post(url, "/scored_data", GROUP)
        assert _run("api", "backup", data, copy) == 0
        _post(url, "/scored_data", GROUP)
    assert "3 groups of " in (out := capsys.readouterr().out) and f"restore {copy}" in out
    assert _run("api", "restore", copy, back) == 0
    assert f"serve --data-dir {back}" in capsys.readouterr().out
    with open_explorer(tmp_path / "back", None) as (store, explorer):
        assert store.stats().groups_held == 3 and len(explorer.rollouts({}).rows) == 12


def test_a_run_moves_to_postgresql_with_its_index_of_rollouts(tmp_path, capsys, postgres):
    data, copy, of_apis = (tmp_path / name for name in ("data", "copy", "apis"))
    url = postgres.fresh_url()
    with served(create_app(SqliteStore(data, archive_bytes=2**20))) as address:
        for _ in range(3):
            _post(address, "/scored_data", GROUP)
        assert _run("api", "backup", str(data), str(copy)) == 0
    assert _run("api", "restore", str(copy), url, "--data-dir", str(of_apis)) == 0
    assert "serve --store postgresql://" in capsys.readouterr().out
    with open_explorer(url, None, index=of_apis) as (_, explorer):
        rows = explorer.rollouts({}).rows
    assert {row.gid for row in rows} == {1, 2, 3} and len(rows) == 12
    with served(create_app(PostgresStore(url, data_dir=of_apis))) as address:
        _post(address, "/scored_data", GROUP | {"scores": [1.0, 0.0, 0.0, 0.0]})
    with closing(PostgresStore(url)) as store:
        assert store.stats().groups_held == 4
    again, back = str(tmp_path / "again"), tmp_path / "as files"
    assert _run("api", "backup", url, again, "--data-dir", str(of_apis)) == 0
    assert "4 groups of " in capsys.readouterr().out
    assert _run("api", "restore", again, str(back)) == 0
    with open_explorer(back, None) as (store, explorer):
        assert store.stats().groups_held == 4 and len(explorer.rollouts({}).rows) == 16
    assert _run("api", "restore", str(copy), str(tmp_path / "back"), "--data-dir", ".") == 2


def test_what_cannot_be_backed_up_is_told_with_the_remedy(tmp_path, capsys):
    assert _run("api", "backup", str(tmp_path), str(tmp_path / "copy")) == 2
    assert "no data directory" in capsys.readouterr().err
    absent = "postgresql://u:secret@127.0.0.1:1/d?connect_timeout=no"
    assert _run("api", "backup", absent, str(tmp_path / "copy")) != 0
    assert "PostgreSQL" in (told := capsys.readouterr().err) and "secret" not in told
    assert _run("api", "backup", str(tmp_path), str(tmp_path / "c"), "--data-dir", ".") == 2
    assert _run("api", "backup", "http://127.0.0.1:8000", str(tmp_path / "copy")) == 2
    assert "on the machine of the API" in capsys.readouterr().err
    assert _run("api", "restore", str(tmp_path), str(tmp_path / "back")) == 2
    assert "did not end" in capsys.readouterr().err
