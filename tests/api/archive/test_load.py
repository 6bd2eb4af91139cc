"""Rows of a run for notebooks."""

from __future__ import annotations

import pytest

import atroposlib
from atroposlib.api.archive.index import Index
from atroposlib.errors import ConfigError
from tests.api.archive.rollouts import group, row


@pytest.fixture
def run(tmp_path):
    index = Index(tmp_path / "archive" / "index.sqlite")
    index.write([group(1, [row(0.0), row(1.0)]), group(2, [row(0.5)], env="code")])
    yield tmp_path  # while the run goes on
    index.close()


def test_rows_of_a_run_are_records_oldest_first(run):
    rows = atroposlib.load_rollouts(run)
    assert [(one["gid"], one["row"], one["reward"]) for one in rows] == [
        (1, 0, 0.0),
        (1, 1, 1.0),
        (2, 0, 0.5),
    ]
    assert rows[0]["batch_no"] is None


def test_filters_are_those_of_the_route(run):
    assert [one["gid"] for one in atroposlib.load_rollouts(run, env="code")] == [2]
    assert len(atroposlib.load_rollouts(run, reward="0.5..1")) == 2
    with pytest.raises(ConfigError):
        atroposlib.load_rollouts(run, env_name="code")


def test_a_directory_without_a_run_is_named(tmp_path):
    with pytest.raises(ConfigError, match="data-dir"):
        atroposlib.load_rollouts(tmp_path)


def test_a_table_has_the_same_columns(run):
    pandas = pytest.importorskip("pandas")
    table = atroposlib.load_rollouts(run, frame="pandas")
    assert isinstance(table, pandas.DataFrame)
    assert len(table) == 3
