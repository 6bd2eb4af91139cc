"""Which directories a server of a run loads weights from."""

from __future__ import annotations

import os

import pytest

from atroposlib.utils.models.node_copy import copy_once
from atroposlib.utils.models.weight_folders import require_weight_folder


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "run/published").mkdir(parents=True)
    (tmp_path / "other/published").mkdir(parents=True)
    folders = [str(tmp_path / "run"), str(tmp_path / "run2")]
    monkeypatch.setenv("ATROPOS_WEIGHTS_FROM", os.pathsep.join(folders))
    monkeypatch.setenv("ATROPOS_NODE_DIR", str(tmp_path / "node"))
    return tmp_path


@pytest.mark.parametrize("inside", ["run", "run/published/version_1", "run2/version_1"])
def test_directories_of_the_run_are_taken(run, inside):
    require_weight_folder(str(run / inside))


@pytest.mark.parametrize(
    "outside", ["other/published", "run/../other/published", "run3", "", "/", "running"]
)
def test_others_are_rejected_and_the_folders_named(run, outside, monkeypatch):
    monkeypatch.chdir(run)
    with pytest.raises(PermissionError, match="ATROPOS_WEIGHTS_FROM"):
        require_weight_folder(outside)


def test_a_link_counts_as_what_it_leads_to(run):
    (run / "run/link").symlink_to(run / "other")
    with pytest.raises(PermissionError):
        require_weight_folder(str(run / "run/link/published"))


def test_a_copy_on_the_node_can_be_loaded_and_nothing_else_be_copied(run):
    for name in ("run", "other"):
        (run / name / "published/config.json").write_text("{}")
    copy, _ = copy_once(str(run / "run/published"))
    require_weight_folder(copy)
    with pytest.raises(PermissionError):
        copy_once(str(run / "other/published"))


def test_a_server_of_no_run_takes_any_directory(run, monkeypatch):
    monkeypatch.delenv("ATROPOS_WEIGHTS_FROM")
    require_weight_folder(str(run / "other"))
