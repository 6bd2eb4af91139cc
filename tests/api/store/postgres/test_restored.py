"""A backup of a data directory restored into PostgreSQL: the same queue, and a refusal otherwise."""

from __future__ import annotations

from contextlib import closing

import pytest

from atroposlib.api.store.postgres import PostgresStore
from atroposlib.api.store.postgres.restored import TABLES, restore_into
from atroposlib.api.store.sql.ack import Ack
from atroposlib.api.store.sql.run import LoadRun, SaveRun
from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.api.store.sqlite.backup import back_up
from atroposlib.errors import ConfigError, StaleGeneration
from tests.api.store.store_talk import ack, claim, group, put, register


@pytest.fixture
def queue(tmp_path):
    """A directory with groups that are archived, acknowledged, leased, buffered and queued."""
    with closing(SqliteStore(tmp_path / "data", archive_bytes=10**6)) as store:
        store.do(SaveRun(b"{}", store.ask(LoadRun()).revision))
        for no in range(40):  # keys with bytes that PostgreSQL escapes
            put(store, group(f"{no:02}" * 300, key=f"k\\{no}\0"))
        generation = register(store)
        ack(store, claim(store, generation), commit=True)
        ack(store, claim(store, generation), commit=False)
        claim(store, generation)
        put(store, group("part", 2, env=1, expected=4))
        store.pin([1])
        yield store


def _rows(store, table):
    return store.ask(
        lambda connection: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2")
    )


def test_a_run_moves_from_a_data_directory_to_postgresql(queue, url, tmp_path):
    kept = queue.kept_gids(0, 100)
    (tmp_path / "data" / "archive").mkdir(exist_ok=True)
    manifest = back_up(tmp_path / "data", tmp_path / "copy")
    assert restore_into(url, tmp_path / "copy", tmp_path / "of apis") == manifest
    with closing(PostgresStore(url)) as moved:
        for table in set(TABLES) - {"meta", "run_document", "pinned"}:
            assert _rows(moved, table) == _rows(queue, table), table
        assert moved.kept_gids(0, 100) == kept
        assert moved.read(kept, retired=True) == queue.read(kept, retired=True)
        before, after = queue.stats(), moved.stats()
        assert after.retained_bytes == before.retained_bytes
        assert after.group_counts == before.group_counts
        [again] = put(moved, group("07" * 300, key="k\\7\0"))
        assert again.duplicate
        [later] = put(moved, group("later"))
        assert later.gid == 42


def test_the_moved_run_refuses_the_trainers_of_the_original(queue, url, tmp_path):
    batch = claim(queue, register(queue))
    back_up(tmp_path / "data", tmp_path / "copy")
    restore_into(url, tmp_path / "copy")
    with closing(PostgresStore(url)) as moved:
        with pytest.raises(StaleGeneration):
            moved.do(Ack(batch.no, batch.generation, batch.epoch, rank=None, commit=True))
        assert claim(moved, register(moved)).no <= batch.no


def test_a_schema_with_a_run_and_a_damaged_backup_are_refused_and_nothing_is_written(
    queue, url, tmp_path
):
    back_up(tmp_path / "data", tmp_path / "copy")
    restore_into(url, tmp_path / "copy")
    with pytest.raises(ConfigError, match="a run is in postgresql://.*schema="):
        restore_into(url, tmp_path / "copy")
    [segment, *_] = (tmp_path / "copy").glob("payload-*.log")
    segment.write_bytes(segment.read_bytes()[:-1] + b"?")
    with pytest.raises(ConfigError, match="is damaged"):
        restore_into(f"{url}_2", tmp_path / "copy")
