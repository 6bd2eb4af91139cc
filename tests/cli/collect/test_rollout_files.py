"""atropos data export: whole files, filters in any place, and errors in one line."""

from __future__ import annotations

import json

import pytest

from atroposlib.api.archive.index import Index
from atroposlib.api.store.sqlite import DATABASE
from atroposlib.cli.collect import rollout_files
from atroposlib.errors import ConfigError
from tests.api.archive.rollouts import group, row


@pytest.fixture
def run(tmp_path, monkeypatch):
    index = Index(tmp_path / "run" / "queue" / "archive" / "index.sqlite")
    index.write([group(1, [row(0.0), row(1.0)]), group(2, [row(0.5)], env="code")])
    index.close()
    (tmp_path / "run" / "queue" / DATABASE).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def test_numbers_are_written_as_lines(run, capsys):
    assert rollout_files.main([str(run), "--no-text", "env=code", "--out", "a.jsonl"]) == 0
    assert capsys.readouterr().out.startswith("1 rollouts in a.jsonl, ")
    (line,) = (run.parent / "a.jsonl").read_text().splitlines()
    assert json.loads(line)["gid"] == 2 and "answer" not in json.loads(line)


def test_a_file_that_is_not_whole_is_not_there(run, monkeypatch):
    def fail(rollouts, path):
        path.write_text("half")
        raise ConfigError("no")

    monkeypatch.setitem(rollout_files.WRITERS, "jsonl", fail)
    with pytest.raises(ConfigError):
        rollout_files.main([str(run)])
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_words_that_are_no_filters_end_with_status_2(run, capsys):
    for word in ("--fast", "code"):
        with pytest.raises(SystemExit) as ended:
            rollout_files.main([str(run), word])
        assert ended.value.code == 2
        assert f"unknown argument {word}" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="unknown"):
        rollout_files.main([str(run), "envv=code"])


def test_parquet_has_the_columns_of_all_rollouts(run):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert rollout_files.main([str(run), "--to", "parquet", "--no-text"]) == 0
    table = parquet.read_table(run.parent / "rollouts.parquet")
    assert table.column("gid").to_pylist() == [1, 1, 2]
