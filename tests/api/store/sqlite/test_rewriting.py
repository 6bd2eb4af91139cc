"""A data directory of the release before, with groups stored as JSON: converted at its opening.

``layout6.tar.gz`` was written by that release: groups 1 (committed, in the archive), 2 (leased), 3, 4
(binary), 5 (without a key), 6 (advantages of another length) and 7 (in a buffer).
"""

from __future__ import annotations

import json
import shutil
import tarfile
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from atroposlib.api.codec import read_group
from atroposlib.api.codec.json import stored_form
from atroposlib.api.common.records import GroupState
from atroposlib.api.store.sql import rewriting
from atroposlib.api.store.sqlite import DATABASE, SqliteStore
from atroposlib.errors import ConfigError, CorruptPayload, KeyConflict, StoreError
from atroposlib.wire.binary import unpack_group
from tests.api.store.store_talk import put, register

OLD = Path(__file__).with_name("layout6.tar.gz")


def group(item, **more):
    return {
        "tokens": [[item, 5, 9], [2, 7]],
        "masks": [[-100, 5, 9], [-100, 3]],
        "scores": [1.0, 0.5 * item],
        "inference_logprobs": [[1.0, -0.25, -0.1], [1.0, -0.5]],
        "metadata": {"item": item, "t": "é"},
        "env_id": 0,
    } | more


def posted(item, key=None, **more):
    return read_group(json.dumps(group(item, **more)).encode(), "application/json", key)


@pytest.fixture
def folder(tmp_path):
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path / "data", filter="data")
    return tmp_path / "data"


def opened(folder, convert=stored_form):
    return closing(SqliteStore(folder, archive_bytes=2**20, convert=convert))


def require_all_groups(store):
    for gid in range(1, 8):
        [payload] = store.read([gid], retired=True)
        record = unpack_group(payload)
        expected = group(gid)
        if gid == 4:  # posted in binary, with floats of 32 bits
            expected["inference_logprobs"] = record.inference_logprobs
        for name, value in expected.items():
            assert getattr(record, name) == value, (gid, name)
    assert record.idempotency_key == "k7"
    stats = store.stats()
    sizes = {gid: len(store.read([gid])[0]) for gid in range(2, 8)}
    assert stats.retained_bytes == sum(sizes.values())
    held = {count.state: count.n_bytes for count in stats.group_counts}
    assert held == {
        GroupState.PENDING: sum(sizes[gid] for gid in range(3, 7)),
        GroupState.BUFFERED: sizes[7],
        GroupState.LEASED: sizes[2],
    }


def test_every_group_is_kept_and_stored_in_the_one_form(folder):
    with opened(folder) as store:
        require_all_groups(store)
    with opened(folder, convert=None) as store:  # it has the layout of this release now
        require_all_groups(store)
        assert put(store, posted(8, "k8"))[0].gid == 8
        assert store.read([8])[0] == posted(8, "k8").payload


def test_a_repeated_post_is_known_after_the_conversion(folder):
    with opened(folder) as store:
        register(store)
        repeats = put(
            store, posted(1, "k1"), posted(3, "k3"), posted(6, "k6", advantages=[[1.0]])
        )
        assert [repeat.duplicate for repeat in repeats] == [True] * 3
        with pytest.raises(KeyConflict):
            put(store, posted(9, "k3"))


def test_a_repeat_of_a_group_whose_payload_is_freed_is_known_by_its_key(folder):
    connection = apsw.Connection(str(folder / DATABASE))
    connection.execute("DELETE FROM archived")
    connection.close()
    with opened(folder) as store:
        assert put(store, posted(1, "k1"))[0].duplicate


def test_a_crash_at_any_moment_loses_nothing(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(rewriting, "GROUPS_PER_TRANSACTION", 1)
    copies = []

    def convert(text):
        copies.append(tmp_path / f"copy {len(copies)}")
        shutil.copytree(folder, copies[-1])
        return stored_form(text)

    with opened(folder, convert) as store:
        require_all_groups(store)
    assert len(copies) == 6
    for copy in copies:
        with opened(copy) as store:
            require_all_groups(store)


def test_a_failing_disk_is_reported_and_the_next_opening_goes_on(folder, monkeypatch):
    monkeypatch.setattr(rewriting, "GROUPS_PER_TRANSACTION", 1)
    failures = iter([b"", b"", OSError("no space")])

    def convert(text):
        if isinstance(failure := next(failures), OSError):
            raise failure
        return stored_form(text)

    with pytest.raises(StoreError, match="no space"):
        opened(folder, convert)
    with opened(folder) as store:
        require_all_groups(store)


def test_a_damaged_group_stays_damaged_and_harms_no_other(folder):
    connection = apsw.Connection(str(folder / DATABASE))
    connection.execute("UPDATE groups SET digest = x'00' WHERE gid = 3")
    connection.close()

    def convert(text):
        if b'"k6"' in text:
            raise ValueError("no group")
        return stored_form(text)

    with opened(folder, convert) as store:
        with pytest.raises(CorruptPayload) as refused:
            store.read(range(2, 8))
        assert refused.value.gids == (3, 6)


def test_without_a_converter_the_directory_is_refused_and_not_changed(folder):
    before = (folder / DATABASE).read_bytes()
    with pytest.raises(ConfigError, match="layout 6"):
        SqliteStore(folder)
    assert (folder / DATABASE).read_bytes() == before
