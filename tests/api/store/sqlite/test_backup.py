"""Backup of a data directory in use, and the directory that is restored from it."""

from __future__ import annotations

import json
import os
from contextlib import closing

import msgspec
import pytest

from atroposlib import wire
from atroposlib.api.common.run_record import RunRecord
from atroposlib.api.decisions import run_state
from atroposlib.api.store.sql.ack import Ack
from atroposlib.api.store.sql.run import LoadRun, SaveRun
from atroposlib.api.store.sqlite import DATABASE, SqliteStore
from atroposlib.api.store.sqlite.backup import MANIFEST, back_up, read_manifest, restore
from atroposlib.errors import ConfigError, StaleGeneration
from tests.api.store.store_talk import claim, group, put, register

JOIN = wire.RegisterEnv(max_token_length=64, desired_name="math", weight=1.0, group_size=4)


@pytest.fixture
def queue(tmp_path):
    with closing(SqliteStore(tmp_path / "data", segment_bytes=4_000)) as store:
        store.do(SaveRun(b"{}", store.ask(LoadRun()).revision))
        for no in range(20):
            put(store, group(f"{no:02}" * 500, key=f"k{no}"))
        yield store


def _rows(store, sql="SELECT gid, key, state, batch_no FROM groups ORDER BY gid"):
    return store.ask(lambda connection: connection.execute(sql))


def test_a_restored_queue_holds_the_groups_and_batches_of_the_backup(queue, tmp_path):
    batch = claim(queue, register(queue))
    manifest = back_up(tmp_path / "data", tmp_path / "copy")
    later = _rows(queue)
    put(queue, group("later", key="later"))
    assert (manifest.groups, manifest.last_batch, manifest.damaged) == (20, batch.no, 0)
    assert restore(tmp_path / "copy", tmp_path / "back") == manifest
    with closing(SqliteStore(tmp_path / "back")) as back:
        assert _rows(back) == later
        assert back.read([gid for gid, *_ in later]) == queue.read([gid for gid, *_ in later])
        assert [stored.duplicate for stored in put(back, group("00" * 500, key="k0"))] == [
            True
        ]


def test_a_restored_queue_refuses_the_trainers_of_the_original(queue, tmp_path):
    batch = claim(queue, register(queue))
    back_up(tmp_path / "data", tmp_path / "copy")
    for _ in range(3):  # trainers that register after the backup
        register(queue)
    restore(tmp_path / "copy", tmp_path / "back")
    with closing(SqliteStore(tmp_path / "back")) as back:
        for generation in range(batch.generation, queue.ask(LoadRun()).generation + 1):
            with pytest.raises(StaleGeneration):
                back.do(Ack(batch.no, generation, batch.epoch, rank=None, commit=True))
        assert claim(back, register(back)).no == batch.no


def test_no_environment_gets_an_id_that_the_original_gave_out_since(queue, tmp_path):
    run = msgspec.structs.replace(RunRecord(), run_id="r", state="STARTED")
    run, entry = run_state.join(run, JOIN)
    envs = {entry.env_id: msgspec.json.encode(entry)}
    body = msgspec.json.encode(msgspec.structs.replace(run, envs=()))
    queue.do(SaveRun(body, queue.ask(LoadRun()).revision, envs=envs))
    back_up(tmp_path / "data", tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "back")
    with closing(SqliteStore(tmp_path / "back")) as back:
        kept = run_state.run_of(back.ask(LoadRun()))
    later = [run_state.join(kept, JOIN)[1].env_id, run_state.join(run, JOIN)[1].env_id]
    assert kept.envs == (entry,) and kept.run_id == "r" and later[0] > later[1] + 1000


def test_a_stopped_and_a_killed_directory_can_be_backed_up(queue, tmp_path):
    put(queue, group("last", key="last"))
    for name in ("stopped", "killed"):
        if name == "stopped":
            back_up(tmp_path / "data", tmp_path / "live")
            restore(tmp_path / "live", tmp_path / name)
        else:
            os.makedirs(tmp_path / name)
            for file in (tmp_path / "data").iterdir():
                if file.is_file():
                    (tmp_path / name / file.name).write_bytes(file.read_bytes())
        assert back_up(tmp_path / name, tmp_path / f"{name}-copy").groups == 21
        with closing(SqliteStore(tmp_path / name)) as store:
            assert len(_rows(store)) == 21


def test_a_lost_segment_is_told_and_the_rest_is_copied(queue, tmp_path):
    first = min((tmp_path / "data").glob("payload-*.log"))
    first.unlink()
    manifest = back_up(tmp_path / "data", tmp_path / "copy")
    assert manifest.groups == 20 and 0 < manifest.damaged < 20
    restore(tmp_path / "copy", tmp_path / "back")


@pytest.mark.parametrize("damage", ["flipped", "cut", "absent", "unfinished"])
def test_a_damaged_backup_restores_nothing(queue, tmp_path, damage):
    back_up(tmp_path / "data", tmp_path / "copy")
    file = tmp_path / "copy" / (MANIFEST if damage == "unfinished" else DATABASE)
    body = bytearray(file.read_bytes())
    if damage in ("absent", "unfinished"):
        file.unlink()
    else:
        body[len(body) // 2] ^= 1
        file.write_bytes(body[:-1] if damage == "cut" else body)
    with pytest.raises(
        ConfigError, match="did not end" if damage == "unfinished" else DATABASE
    ):
        restore(tmp_path / "copy", tmp_path / "back")
    assert {path.name for path in tmp_path.iterdir()} == {"data", "copy"}


def test_nothing_is_written_over(queue, tmp_path):
    back_up(tmp_path / "data", tmp_path / "copy")
    for call in (back_up, restore):
        source = tmp_path / ("data" if call is back_up else "copy")
        with pytest.raises(ConfigError, match="not empty"):
            call(source, tmp_path / "copy")
    with pytest.raises(ConfigError, match="no data directory"):
        back_up(tmp_path, tmp_path / "other")


def test_a_manifest_of_another_release_or_with_foreign_paths_is_refused(queue, tmp_path):
    back_up(tmp_path / "data", tmp_path / "copy")
    manifest = json.loads((tmp_path / "copy" / MANIFEST).read_text())
    manifest["files"]["../data/" + DATABASE] = {"n_bytes": 1, "digest": ""}
    (tmp_path / "copy" / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match="outside"):
        restore(tmp_path / "copy", tmp_path / "back")
    (tmp_path / "copy" / MANIFEST).write_text(json.dumps({**manifest, "layout": 6}))
    with pytest.raises(ConfigError, match="layout 6"):
        read_manifest(tmp_path / "copy")


def test_the_files_of_a_backup_are_for_its_owner_alone(queue, tmp_path):
    back_up(tmp_path / "data", tmp_path / "copy")
    files = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    secret = [path for path in files if path.name != MANIFEST]
    assert secret and all(path.stat().st_mode & 0o077 == 0 for path in secret)
