"""Rows of a run for notebooks."""

from __future__ import annotations

from contextlib import closing

import pytest

import atroposlib
from atroposlib.api.archive.index import Index
from atroposlib.api.archive.load import DATABASE, open_explorer, place
from atroposlib.cli.view import archive
from atroposlib.errors import ConfigError
from atroposlib.utils.command.run_folder import DATA_FOLDERS
from tests.api.archive.rollouts import group, row
from tests.api.harness import Api


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


def test_an_environment_is_named_with_or_without_its_number_and_never_silently_absent(
    tmp_path,
):
    with closing(Index(tmp_path / "archive" / "index.sqlite")) as index:
        named = enumerate(("math_0", "math_1", "maths_0"), 1)
        index.write([group(gid, [row(0.0)], env=env) for gid, env in named])
        for name, gids in (("math", [1, 2]), ("math_1", [2]), ("maths", [3])):
            assert [r["gid"] for r in atroposlib.load_rollouts(tmp_path, env=name)] == gids
        with pytest.raises(ConfigError, match="env=mat: .* math_0, math_1, maths_0"):
            atroposlib.load_rollouts(tmp_path, env="mat")


def test_a_directory_without_a_run_is_named(tmp_path):
    with pytest.raises(ConfigError, match="data-dir"):
        atroposlib.load_rollouts(tmp_path)


def test_a_table_has_the_same_columns(run):
    pandas = pytest.importorskip("pandas")
    table = atroposlib.load_rollouts(run, frame="pandas")
    assert isinstance(table, pandas.DataFrame)
    assert len(table) == 3


async def test_a_run_on_postgresql_is_viewed_while_it_goes_on(postgres, tmp_path, capsys):
    url = postgres.fresh_url()
    api = Api(tmp_path, url, archive_bytes=10**6)
    await api.half_trained()
    step = {"role": "trainer", "step": 7, "batch_no": 1, "values": {"loss": 2.0}}
    await api.post("/steps", step)
    assert api.service.context.indexer.flush()
    for index, steps in ((None, set()), (tmp_path, {7})):
        with open_explorer(url, None, index=index) as (_, explorer):
            rows = explorer.rollouts({"sort": "arrived"}).rows
            assert [(one.gid, one.state) for one in rows[::2]] == [
                (1, "committed"),
                (2, "pending"),
            ]
            assert {one.step for one in rows} - {None} == steps
            assert explorer.group(1, {}).archived
            assert explorer.row(1, 0, {}).columns.id == [1, 7]
    assert archive(["pin", url, "1"]) == 0
    assert archive(["ls", url]) == 0
    assert "1 of 1 groups of step 1 are pinned" in (shown := capsys.readouterr().out)
    assert "4 rollouts in 2 groups" in shown
    with pytest.raises(ConfigError, match="smaller --archive-gb"):
        archive(["prune", url, "1"])
    await api.end()
    assert len(atroposlib.load_rollouts(tmp_path)) == 4


@pytest.mark.parametrize("name", DATA_FOLDERS)
def test_the_folder_of_a_run_stands_for_the_data_directory_in_it(run, name):
    folder = run.parent / f"whole-{name}"
    folder.mkdir()
    assert place(str(folder)) == folder
    run.rename(folder / name)
    (folder / name / DATABASE).touch()
    assert place(str(folder)) == folder / name
    assert len(atroposlib.load_rollouts(folder)) == 3
