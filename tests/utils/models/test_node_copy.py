"""Copies of published directories on the own disk of a node."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atroposlib.utils.models.node_copy import copy_once


@pytest.fixture
def publish(tmp_path, monkeypatch):
    monkeypatch.setenv("ATROPOS_NODE_DIR", str(tmp_path / "node"))

    def write(name, folder="published"):
        directory = tmp_path / folder / name
        directory.mkdir(parents=True)
        (directory / "config.json").touch()
        (directory / "model.safetensors").write_bytes(name.encode())
        return str(directory)

    return write


def test_of_many_processes_one_copies(publish):
    source = publish("version_a_1")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(copy_once, [source] * 8))
    assert len({path for path, _ in found}) == 1
    assert sorted(size for _, size in found) == [0] * 7 + [len("version_a_1")]


def test_the_copy_before_stays_and_older_ones_and_broken_ones_go(publish):
    first, _ = copy_once(publish("version_a_1"))
    second, _ = copy_once(publish("version_b_2"))
    broken = Path(first).with_name(".version_x_9")
    broken.mkdir()
    third, _ = copy_once(publish("version_c_3"))
    assert not Path(first).exists() and not broken.exists()
    assert Path(second).exists() and Path(third).exists()


def test_runs_with_directories_of_their_own_keep_out_of_each_others_copies(publish):
    kept, _ = copy_once(publish("version_a_1", "one"))
    for name in ("version_b_1", "version_c_2", "version_d_3"):
        copy_once(publish(name, "other"))
    assert Path(kept).exists()


def test_a_folder_that_others_can_write_is_refused(publish, tmp_path):
    own = tmp_path / "node" / f"atropos-weights-{os.getuid()}"
    own.mkdir(parents=True)
    own.chmod(0o777)
    with pytest.raises(PermissionError, match="only this user"):
        copy_once(publish("version_a_1"))


def test_only_the_files_of_a_model_are_copied(publish, tmp_path):
    source = Path(publish("version_a_1"))
    (source / "more").mkdir()
    (source / "more/secret").touch()
    copy, _ = copy_once(str(source))
    assert {path.name for path in Path(copy).iterdir()} == {"config.json", "model.safetensors"}
    for place in (tmp_path, "/etc", "/proc/self", tmp_path / "absent"):
        with pytest.raises(FileNotFoundError, match="no directory of a model"):
            copy_once(str(place))
