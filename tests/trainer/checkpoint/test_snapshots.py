"""Tests of checkpoints on disk: schedule, retention, detection of damage."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from atroposlib.errors import CheckpointError
from example_trainer.checkpoint import shards, snapshots
from example_trainer.model import model_dir
from example_trainer.model.model_dir import TrainerState
from tests.trainer.checkpoint.lives import (
    checkpoints,
    recover_directory,
    recovery_of,
    write_snapshot,
)


def test_damaged_checkpoint_is_set_aside_and_the_previous_one_loses_no_batch(
    start, queued, tmp_path, caplog
):
    caplog.set_level("INFO")
    life = start()
    keys = [life.step(), life.step()]
    saved = life.state
    keys.append(life.step())
    assert checkpoints(tmp_path) == ["step_2", "step_3"]
    path = recover_directory(tmp_path) / "step_3" / "optimizer-00000-00000.safetensors"
    flipped = bytearray(path.read_bytes())
    flipped[-1] ^= 1
    path.write_bytes(flipped)

    life = start()
    assert "DAMAGED" in (said := caplog.text) and "optimizer-00000" in said
    assert life.state == saved
    assert life.step() == keys[2]
    assert checkpoints(tmp_path) == ["step_2", "step_3"]
    assert (recover_directory(tmp_path) / "damaged_step_3").is_dir()


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda d: (d / "state.json").unlink(), "state.json is missing"),
        (lambda d: (d / "rng.json").write_text("{}"), "rng.json has 2 bytes"),
        (lambda d: (d / "manifest.json").write_text("{"), "manifest.json cannot be read"),
        (lambda d: (d / "manifest.json").unlink(), "manifest.json cannot be read"),
    ],
)
def test_every_kind_of_damage_is_detected(tmp_path, harm, problem):
    kept = snapshots.Snapshots(tmp_path, keep=2)
    documents = {"state": {"step": 1}, "rng": [1, 2, 3]}
    whole = write_snapshot(kept, 1, {"weights": {"a": torch.ones(3)}}, documents)
    assert snapshots.checkpoint_problem(whole.directory) is None
    harm(whole.directory)
    assert problem in (snapshots.checkpoint_problem(whole.directory) or "")
    assert kept.newest() is None


def test_tensors_round_trip_over_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "FILE_BYTES", 100)
    tensors = {f"t{i}": torch.full((i + 1, 7), float(i)) for i in range(9)}
    tensors["tied"] = tensors["t3"]
    tensors["empty"] = torch.zeros(0, 4)
    tensors["steps"] = torch.tensor(7, dtype=torch.int64)
    kept = snapshots.Snapshots(tmp_path, 1)
    written = write_snapshot(kept, 3, {"weights": tensors}, {"state": {}})
    assert len(list(written.directory.glob("weights-*.safetensors"))) > 3
    loaded = written.tensors("weights")
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name][()], tensors[name]) for name in tensors)
    assert written.tensors("critic_weights") == {} and written.document("absent") is None


def test_trainer_killed_before_the_latest_pointer_moved_loads_the_old_checkpoint(tmp_path):
    kept = snapshots.Snapshots(tmp_path, keep=2)
    for step in (1, 2):
        write_snapshot(kept, step, documents={"state": {"step": step}})
    (tmp_path / "LATEST").write_text("step_1")
    assert kept.newest().directory.name == "step_1"
    (tmp_path / "LATEST").unlink()
    assert kept.newest().directory.name == "step_2"
    (tmp_path / "LATEST").write_text("step_9")
    assert kept.newest().directory.name == "step_2"


def test_a_checkpoint_that_is_half_deleted_has_no_name_of_one(tmp_path, monkeypatch):
    rmtree = model_dir.shutil.rmtree

    def killed(path, **options):
        if path.name == ".step_1.draft" and path.exists():
            (path / "state.json").unlink()
            raise KeyboardInterrupt
        rmtree(path, **options)

    kept = snapshots.Snapshots(tmp_path, keep=1)
    write_snapshot(kept, 1, documents={"state": {}})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(model_dir.shutil, "rmtree", killed)
        write_snapshot(kept, 2, documents={"state": {}})
    assert [path.name for path in tmp_path.glob("step_*")] == ["step_2"]
    assert kept.newest().directory.name == "step_2"
    assert not list(tmp_path.glob(".step_*"))


def test_drafts_of_a_killed_writer_are_cleared_away(start, queued, tmp_path):
    start().step()
    draft = recover_directory(tmp_path) / ".step_2.draft"
    draft.mkdir()
    (draft / "weights-00000.safetensors").write_text("half")
    assert start().state.step == 1
    assert not draft.exists()


def test_only_batches_in_every_kept_checkpoint_are_committed(start, queued, tmp_path):
    life = start(keep_recover=3)
    sizes = []
    for _ in range(4):
        life.step()
        sizes.append(life.client.status().retained_bytes)
    assert sizes[0] == sizes[1] > sizes[2] > sizes[3]
    assert checkpoints(tmp_path) == ["step_2", "step_3", "step_4"]


def test_full_disk_stops_the_trainer_and_keeps_all_checkpoints(
    start, queued, tmp_path, monkeypatch
):
    life = start()
    life.step()

    def full(path):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(model_dir, "sync_path", full)
        with pytest.raises(CheckpointError, match="step_2 could not be written"):
            life.step()
    assert start().state.step == 1
    assert checkpoints(tmp_path) == ["step_1"]


def test_a_checkpoint_is_due_by_steps_by_seconds_and_at_the_end(config, monkeypatch):
    def due(steps: int = 6, **settings: Any) -> list[int]:
        recovery = recovery_of(config(training_steps=steps, **settings))
        states = [TrainerState("r", step, step, step) for step in range(1, steps + 1)]
        return [s.step for s in states if recovery.due(s, s.step % 4 == 0)]

    assert due(recover_every_steps=1) == [1, 2, 3, 4, 5, 6]
    assert due(recover_every_steps=4) == [4, 6]
    assert due(recover_every_epochs=1) == [4, 6]
    assert due(recover_every_s=3600.0) == [6]
    clock = iter(range(10_000, 90_000, 600))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    assert due(recover_every_s=1000.0) == [2, 4, 6]
