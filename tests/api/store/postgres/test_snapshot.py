"""A backup of a run on PostgreSQL: the same queue in a data directory, and a refusal otherwise."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from atroposlib.api.store.postgres import PostgresStore
from atroposlib.api.store.postgres.restored import TABLES, restore_into
from atroposlib.api.store.postgres.snapshot import back_up_schema
from atroposlib.api.store.sql.ack import Ack
from atroposlib.api.store.sql.run import LoadRun, SaveRun
from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.api.store.sqlite.backup import restore
from atroposlib.errors import ConfigError, StaleGeneration
from tests.api.store.store_talk import ack, claim, group, put, register

GIDS = "SELECT gid FROM groups ORDER BY gid"
MOVED = sorted(set(TABLES) - {"meta", "run_document"})


@pytest.fixture
def queue(url):
    """A schema with groups that are archived, acknowledged, leased, buffered and queued."""
    with closing(PostgresStore(url, archive_bytes=10**6)) as store:
        store.do(SaveRun(b"{}", store.ask(LoadRun()).revision))
        # more than a page of rows, and keys with bytes that are escaped
        put(store, *(group(f"{no:03}" * 20, key=f"k\\{no}\0") for no in range(600)))
        generation = register(store)
        ack(store, claim(store, generation), commit=True)
        ack(store, claim(store, generation), commit=False)
        claim(store, generation)
        put(store, group("part", 2, env=1, expected=4))
        store.pin([1])
        yield store


def _rows(store, table):
    sql = f"SELECT * FROM {table} ORDER BY 1"
    return sorted(store.ask(lambda connection: connection.execute(sql)))


def test_a_run_moves_from_postgresql_to_a_data_directory(queue, url, tmp_path):
    kept, before = queue.kept_gids(0, 100), queue.stats()
    manifest = back_up_schema(url, tmp_path / "copy", segment_bytes=9_000)
    assert (manifest.groups, manifest.last_group, manifest.damaged) == (597, 601, 0)
    assert len(list((tmp_path / "copy").glob("payload-*.log"))) == 4
    assert restore(tmp_path / "copy", tmp_path / "data") == manifest
    with closing(SqliteStore(tmp_path / "data", archive_bytes=10**6)) as moved:
        for table in MOVED:
            assert _rows(moved, table) == _rows(queue, table), table
        assert moved.kept_gids(0, 100) == kept
        assert moved.read(kept, retired=True) == queue.read(kept, retired=True)
        after = moved.stats()
        assert (after.retained_bytes, after.group_counts) == (
            before.retained_bytes,
            before.group_counts,
        )
        [again] = put(moved, group("007" * 20, key="k\\7\0"))
        assert again.duplicate
        [later] = put(moved, group("later"))
        assert later.gid == 602


def test_a_run_goes_to_files_and_back_to_another_schema_unchanged(
    queue, postgres, url, tmp_path
):
    back_up_schema(url, tmp_path / "copy")
    second = postgres.fresh_url()
    restore_into(second, tmp_path / "copy")
    with closing(PostgresStore(second)) as moved:
        for table in (*MOVED, "payload", "archived"):
            assert _rows(moved, table) == _rows(queue, table), table


def test_the_directory_refuses_the_trainers_of_the_schema(queue, url, tmp_path):
    batch = claim(queue, register(queue))
    back_up_schema(url, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "data")
    with closing(SqliteStore(tmp_path / "data")) as moved:
        with pytest.raises(StaleGeneration):
            moved.do(Ack(batch.no, batch.generation, batch.epoch, rank=None, commit=True))
        assert claim(moved, register(moved)).no <= batch.no


def test_a_backup_under_load_is_the_queue_at_one_point(queue, url, tmp_path):
    answered, ended = [601], threading.Event()

    def post():
        while not ended.is_set():
            [done] = put(queue, group(f"load {len(answered)}" * 50, key=f"{len(answered)}"))
            answered.append(done.gid)

    poster = threading.Thread(target=post)
    poster.start()
    try:
        for number in range(3):
            while len(answered) < 5 * (number + 1):
                ended.wait(0.001)
            before = answered[-1]
            manifest = back_up_schema(url, tmp_path / f"{number}", segment_bytes=9_000)
            after = answered[-1] + 1
            assert before <= manifest.last_group <= after and manifest.damaged == 0
            restore(tmp_path / f"{number}", tmp_path / f"data {number}")
            with closing(SqliteStore(tmp_path / f"data {number}")) as moved:
                gids = [gid for (gid,) in moved.ask(lambda c: c.execute(GIDS))]
                assert gids == list(
                    range(1, manifest.last_group + 1)
                )  # none lost, none doubled
                moved.read(gids[-3:])
    finally:
        ended.set()
        poster.join()


def test_payloads_that_do_not_match_their_digests_are_counted(queue, url, tmp_path):
    queue.do(lambda c: c.execute("UPDATE payload SET body = ? WHERE gid = 500", (b"other",)))
    assert back_up_schema(url, tmp_path / "copy").damaged == 1


def test_an_empty_schema_and_a_folder_in_use_are_refused(queue, postgres, url, tmp_path):
    with pytest.raises(ConfigError, match="no run is in postgresql://.*schema="):
        back_up_schema(postgres.fresh_url(), tmp_path / "none")
    assert not (tmp_path / "none").exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "a").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        back_up_schema(url, tmp_path / "used")
