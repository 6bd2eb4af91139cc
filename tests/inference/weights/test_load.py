"""Atomic loading of new weights from directories and files."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from atroposlib.errors import WeightsError
from atroposlib.inference.engine.request import VersionSpan
from atroposlib.inference.engine.served_model import load_model
from atroposlib.inference.weights.load import load_in_place, load_shared
from tests.inference.helpers import fresh_logprobs, generate, request

EXACT = 1e-4


def changed_copy(source, target, change):
    """A model directory whose tensors went through ``change``."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    save_file(change(tensors), target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_a_reload_in_place_gives_the_logprobs_of_the_new_directory(
    engine, other_dir, other_reference
):
    engine.update_weights(str(other_dir), version=5)
    (result,) = generate(engine, request([5, 6, 7], max_tokens=6))
    (output,) = result.outputs
    fresh = fresh_logprobs(other_reference, [5, 6, 7], output.tokens)
    assert (fresh - torch.tensor(output.logprobs)).abs().max() < EXACT
    assert output.versions == [VersionSpan(5, 0, len(output.tokens))]


def test_a_tied_output_layer_follows_the_embedding(model_dir, other_dir):
    served = load_model(str(model_dir))
    load_in_place(served.model, other_dir)
    head = served.model.get_output_embeddings().weight
    assert head.data_ptr() == served.model.get_input_embeddings().weight.data_ptr()
    assert torch.equal(
        head, load_file(other_dir / "model.safetensors")["model.embed_tokens.weight"]
    )


def drop_one(tensors):
    tensors.pop("model.norm.weight")
    return tensors


def add_one(tensors):
    return {**tensors, "model.extra.weight": torch.zeros(2)}


def reshape_one(tensors):
    return {**tensors, "model.norm.weight": torch.zeros(3)}


def untie(tensors):
    return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"] + 1}


def break_one(tensors):
    return {**tensors, "model.norm.weight": tensors["model.norm.weight"] * torch.nan}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (drop_one, "lack model.norm.weight"),
        (add_one, "no model.extra.weight"),
        (reshape_one, "model.norm.weight has shape"),
        (untie, "differ in the files"),
        (break_one, "not finite"),
    ],
)
def test_a_mismatched_directory_leaves_the_weights_unchanged(
    change, says, model_dir, other_dir, tmp_path
):
    # every other tensor of the bad directory is new: a partial load would show
    bad = changed_copy(other_dir, tmp_path / "bad", change)
    served = load_model(str(model_dir))
    before = {name: t.clone() for name, t in served.model.state_dict().items()}
    with pytest.raises(WeightsError, match=says):
        load_in_place(served.model, bad)
    after = served.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_truncated_file_and_a_missing_directory_are_named(model_dir, tmp_path):
    served = load_model(str(model_dir))
    with pytest.raises(WeightsError, match="not a directory"):
        load_in_place(served.model, tmp_path / "absent")
    broken = tmp_path / "broken"
    shutil.copytree(model_dir, broken)
    whole = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WeightsError, match="cannot be read"):
        load_in_place(served.model, broken)


def test_a_sharded_directory_is_read_by_its_index(model_dir, other_dir, tmp_path):
    sharded = tmp_path / "sharded"
    sharded.mkdir()
    tensors = load_file(other_dir / "model.safetensors")
    names = sorted(tensors)
    files = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({n: tensors[n] for n in names if files[n] == file}, sharded / file)
    index = {"metadata": {}, "weight_map": files}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    served = load_model(str(model_dir))
    assert load_in_place(served.model, sharded) == len(names)
    loaded = served.model.state_dict()
    assert all(torch.equal(loaded[name], tensors[name]) for name in names)


def test_a_file_of_another_user_or_a_symbolic_link_is_rejected(model_dir, tmp_path):
    served = load_model(str(model_dir))
    path = tmp_path / "weights.safetensors"
    shutil.copy(model_dir / "model.safetensors", path)
    path.chmod(0o600)
    with pytest.raises(WeightsError, match="'no version', not version 1"):
        load_shared(served.model, str(path), 1)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(WeightsError, match="nobody else can reach"):
        load_shared(served.model, str(link), 1)
    with pytest.raises(WeightsError, match="cannot be read"):
        load_shared(served.model, str(tmp_path / "absent"), 1)
