"""Tests of tensors in parts: written, described by an index, and read by slices."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from atroposlib.errors import CheckpointError
from example_trainer.checkpoint import shards, snapshots
from example_trainer.checkpoint.shards import HostCopies, Shard, Written, write_shards
from example_trainer.distributed.ranks import Ranks
from tests.trainer.checkpoint.lives import write_snapshot

WHOLE = torch.arange(35, dtype=torch.float32).view(7, 5)


def written_by(count, directory):
    """A checkpoint whose tensor ``a`` is written by so many ranks."""
    written, rows = Written(), -(-len(WHOLE) // count)
    kept = snapshots.Snapshots(directory, keep=1)
    with kept.draft(1) as draft:
        for rank in range(count):
            part = WHOLE[rank * rows : (rank + 1) * rows].clone()
            if len(part):
                shard = Shard("weights", "a", tuple(WHOLE.shape), (rank * rows, 0), part)
                written.add(write_shards(draft, rank, [shard], lambda: None))
        snapshots.seal(draft, written, {})
    return snapshots.Snapshot(directory / "step_1")


@pytest.mark.parametrize("saved_by", [1, 2, 3, 8])
@pytest.mark.parametrize("read_by", [1, 2, 4])
def test_any_number_of_ranks_reads_what_any_number_wrote(tmp_path, saved_by, read_by):
    snapshot = written_by(saved_by, tmp_path)
    assert snapshots.checkpoint_problem(snapshot.directory) is None
    stored = snapshot.tensors("weights")["a"]
    assert stored.shape == WHOLE.shape and torch.equal(stored[()], WHOLE)
    rows = -(-len(WHOLE) // read_by)
    for start in range(0, len(WHOLE), rows):
        part = slice(start, min(start + rows, len(WHOLE)))
        assert torch.equal(stored[part, slice(1, 4)], WHOLE[part, 1:4])
    assert stored[slice(2, 2), slice(0, 5)].shape == (0, 5)


def test_a_missing_part_is_refused(tmp_path):
    snapshot = written_by(2, tmp_path)
    index = json.loads((snapshot.directory / "index.json").read_text())
    index["weights"]["a"]["parts"].pop()
    (snapshot.directory / "index.json").write_text(json.dumps(index))
    stored = snapshot.tensors("weights")["a"]
    assert torch.equal(stored[slice(0, 3), slice(0, 5)], WHOLE[:3])
    with pytest.raises(CheckpointError, match="20 of 35 values of a are there"):
        stored[()]


def test_files_open_with_the_library_whatever_their_types(tmp_path):
    tensors = {
        "odd": torch.arange(3, dtype=torch.uint8),
        "half": torch.randn(5).bfloat16(),
        "step": torch.tensor(7.0),
        "wide": torch.arange(4),
        "flag": torch.tensor([True, False]),
    }
    snapshot = write_snapshot(snapshots.Snapshots(tmp_path, 1), 1, {"optimizer": tensors})
    loaded = load_file(snapshot.directory / "optimizer-00000-00000.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, stored in snapshot.tensors("optimizer").items():
        assert stored.dtype == tensors[name].dtype
        assert torch.equal(stored[()], tensors[name]) and torch.equal(loaded[name], stored[()])


def test_a_file_without_an_index_has_whole_tensors(tmp_path):
    save_file({"a": WHOLE, "steps": torch.tensor(3)}, tmp_path / "weights-00000.safetensors")
    stored = snapshots.Snapshot(tmp_path).tensors("weights")
    assert torch.equal(stored["a"][slice(2, 5), slice(0, 5)], WHOLE[2:5])
    assert stored["steps"][()].item() == 3


def test_the_memory_of_copies_is_used_again_and_holds_no_later_value():
    copies, tensor = HostCopies(), torch.ones(4)
    (first,) = copies.take({"weights": {"a": tensor}}, Ranks.single())
    tensor += 1
    assert first.values.tolist() == [1.0] * 4
    (second,) = copies.take({"weights": {"a": tensor}}, Ranks.single())
    assert second.values.tolist() == [2.0] * 4
    assert second.values.data_ptr() == first.values.data_ptr()


def test_an_abandoned_checkpoint_ends_between_two_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BLOCK_BYTES", 16)
    blocks = []

    def proceed():
        blocks.append(1)
        if len(blocks) > 3:
            raise CheckpointError("abandoned")

    shard = Shard("weights", "a", (7, 5), (0, 0), WHOLE)
    with pytest.raises(CheckpointError, match="abandoned"):
        write_shards(tmp_path, 0, [shard], proceed)
    assert len(blocks) == 4
