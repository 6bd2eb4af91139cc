"""Tests of checkpoints that are written while training goes on."""

from __future__ import annotations

import json
import threading

import pytest
import torch
from safetensors.torch import save_file

from atroposlib.errors import CheckpointError, RankLost, StaleGeneration
from atroposlib.utils.io import file_sha256
from example_trainer.checkpoint import shards, snapshots, writer
from example_trainer.state import Stopped, StoppedBetweenSteps
from tests.trainer.checkpoint.lives import checkpoints, everything, recover_directory


@pytest.fixture
def disk(monkeypatch):
    """A disk on which no write ends before it is released."""
    released = threading.Event()
    write = shards.write_shards

    def write_later(*args):
        assert released.wait(60)
        return write(*args)

    monkeypatch.setattr(writer, "write_shards", write_later)
    yield released
    released.set()


def saving(life):
    models = (life.client, life.policy, life.optimizer)
    return life.recovery.saving_at_stop(*models)


def test_a_step_during_the_write_changes_nothing_of_what_is_written(start, queued, disk):
    life = start()
    life.step(save=False)
    expected = {name: tensor.clone() for name, tensor in everything(life).items()}
    life.save()
    life.step(save=False)
    disk.set()
    life.recovery.finish()
    again = start()
    assert again.state.step == 1
    for name, tensor in everything(again).items():
        assert torch.equal(tensor, expected[name]), name


def test_a_crash_during_the_write_goes_back_to_the_checkpoint_before(
    start, queued, disk, tmp_path
):
    disk.set()
    life = start()
    life.step()
    disk.clear()
    keys = life.step(save=False)
    life.save()
    assert checkpoints(tmp_path) == ["step_1"]
    life.recovery._writer.close(0.0)  # what the end of the process does to its thread
    disk.set()
    life.recovery._writer._thread.join()
    again = start()
    assert again.state.step == 1 and again.step() == keys
    assert not list(recover_directory(tmp_path).glob(".*draft"))


def test_the_api_keeps_batches_until_the_checkpoint_that_has_them_is_whole(
    start, queued, disk
):
    life = start(keep_recover=1)
    before = life.client.status().retained_bytes
    life.step(save=False)
    life.save()
    assert life.client.status().retained_bytes == before
    disk.set()
    life.recovery.finish()
    assert life.client.status().retained_bytes < before


def test_the_next_checkpoint_waits_for_the_one_before_and_names_the_wait(
    start, queued, disk, tmp_path
):
    life, waits = start(), []

    def note(what):
        waits.append(what)
        disk.set()

    life.recovery._writer._note = note
    life.step(save=False)
    life.save()
    life.step(save=False)
    life.save()
    assert checkpoints(tmp_path) == ["step_1"]
    life.recovery.finish()
    assert checkpoints(tmp_path) == ["step_1", "step_2"]
    assert waits[0] == (
        "the writer of the recovery checkpoint of step 1; 0 s of at most 1800 s"
    )


def test_a_disk_that_hangs_ends_the_wait_with_the_remedy(start, queued, disk, monkeypatch):
    monkeypatch.setattr(writer, "RECOVERY_WRITE_S", 0.0)
    life = start()
    life.step(save=False)
    life.save()
    with pytest.raises(CheckpointError, match="step 1 was not written within 0 s.*too slow"):
        life.recovery.finish()


def test_a_write_that_failed_ends_the_trainer_at_its_next_step(
    start, queued, tmp_path, monkeypatch
):
    life = start()
    life.step()

    def refused(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_shards", refused)
        life.step(save=False)
        life.save()
        life.recovery._writer._thread.join()
    life.step(save=False)
    with pytest.raises(CheckpointError, match="step_2 could not be written.*No space left"):
        life.recovery.due(life.state, epoch_ended=False)
    assert start().state.step == 1
    assert checkpoints(tmp_path) == ["step_1"]


def test_a_trainer_that_was_replaced_during_the_write_ends_at_its_next_step(
    start, queued, disk
):
    former = start(keep_recover=1)
    former.step(save=False)
    former.save()
    start(keep_recover=1, save_path=f"{former.recovery._cfg.save_path}_of_another")
    disk.set()
    former.recovery._writer._thread.join()
    with pytest.raises(StaleGeneration):
        former.recovery.due(former.state, epoch_ended=False)


@pytest.mark.parametrize("error", [Stopped, StoppedBetweenSteps, CheckpointError])
def test_a_checkpoint_that_is_being_written_is_finished_at_the_end(start, queued, disk, error):
    life = start()
    with pytest.raises(error), saving(life):
        life.step(save=False)
        life.save()
        threading.Timer(0.1, disk.set).start()
        raise error("an end")
    assert start().state.step == 1


@pytest.mark.parametrize("error", [Stopped, RankLost])
def test_a_checkpoint_that_takes_too_long_at_the_end_is_abandoned(
    start, queued, disk, monkeypatch, caplog, error
):
    close = writer.SnapshotWriter.close
    monkeypatch.setattr(
        writer.SnapshotWriter, "close", lambda self, bound_s=0.0: close(self, 0)
    )
    life = start()
    with pytest.raises(error), saving(life):
        life.step(save=False)
        life.save()
        raise error("an end")
    assert "checkpoint of step 1 is abandoned" in caplog.text
    disk.set()
    life.recovery._writer._thread.join()
    assert start().state.step == 0


def test_seconds_and_bytes_of_a_checkpoint_are_reported_once(start, queued):
    life = start()
    assert life.recovery.take_figures() == {}
    life.step()
    figures = life.recovery.take_figures()
    assert figures["recovery_write_s"] >= 0
    weights = sum(p.numel() for p in life.policy.parameters())
    assert 12 * weights < figures["recovery_bytes"] < 12.5 * weights
    assert life.recovery.take_figures() == {}


def test_a_checkpoint_of_the_format_before_brings_back_every_bit(start, queued, tmp_path):
    life = start()
    keys = [life.step(), life.step()]
    expected = everything(life)
    _rewrite_as_format_1(recover_directory(tmp_path) / "step_2")
    again = start()
    assert again.state == life.state
    for name, tensor in everything(again).items():
        assert torch.equal(tensor, expected[name]), name
    assert again.step() != keys[-1]
    assert start().state.step == 3  # of the present format, next to the older one


def _rewrite_as_format_1(directory):
    """Whole tensors, each in one file, and no index."""
    snapshot = snapshots.Snapshot(directory)
    groups = {
        group: {name: stored[()] for name, stored in snapshot.tensors(group).items()}
        for group in ("weights", "optimizer")
    }
    documents = {n: snapshot.document(n) for n in ("state", "rng", "optimizer")}
    for path in directory.iterdir():
        path.unlink()
    for group, tensors in groups.items():
        save_file(tensors, directory / f"{group}-00000.safetensors")
    documents["state"]["format"] = 1
    for name, document in documents.items():
        (directory / f"{name}.json").write_text(json.dumps(document))
    manifest = {
        path.name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in directory.iterdir()
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))
