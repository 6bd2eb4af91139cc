"""Atomic loading of new weights from directories and files; LoRA adapters."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MixtralConfig, MixtralForCausalLM

from atroposlib.errors import WeightsError
from atroposlib.inference.engine.request import VersionSpan
from atroposlib.inference.engine.served_model import load_model
from atroposlib.inference.engine.weights import load_in_place, load_shared
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


def test_a_model_that_is_saved_under_other_names_is_reloaded(tmp_path):
    config = MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
    )
    served, trained = (MixtralForCausalLM(config) for _ in range(2))
    trained.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert not names <= served.state_dict().keys()
    load_in_place(served, tmp_path)
    found, wanted = served.state_dict(), trained.state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


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


# --- LoRA adapters ---

LAYER = "model.layers.0.self_attn.q_proj"
SETTINGS = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none"}


@pytest.fixture
def adapter(tmp_path, reference):
    """Write an adapter of one layer; returns its directory and its weight delta."""

    def write(name="adapter", settings=None, tensors=None, rank=4):
        directory = tmp_path / name
        directory.mkdir()
        generator = torch.Generator().manual_seed(len(name))
        a = torch.randn(rank, 128, generator=generator)
        b = torch.randn(128, rank, generator=generator)
        key = f"base_model.model.{LAYER}"
        own = {f"{key}.lora_A.weight": a, f"{key}.lora_B.weight": b}
        save_file(
            own if tensors is None else tensors(own), directory / "adapter_model.safetensors"
        )
        (directory / "adapter_config.json").write_text(
            json.dumps({**SETTINGS, **(settings or {})})
        )
        return str(directory), b @ a

    return write


def weight_of(engine):
    return engine.served.model.get_submodule(LAYER).weight


def test_an_adapter_is_added_to_the_weights_and_leaves_them_as_they_were(engine, adapter):
    before = weight_of(engine).clone()
    first, added = adapter("first")
    assert engine.load_adapter(first, "policy-v1", 1) == 1
    assert torch.allclose(weight_of(engine), before + 2 * added, atol=1e-5)
    assert (engine.adapter, engine.weight_version) == ("policy-v1", 1)
    second, other = adapter("second one")
    engine.load_adapter(second, "policy-v2", None)
    assert torch.allclose(weight_of(engine), before + 2 * other, atol=1e-5)
    assert engine.weight_version == 2
    engine.unload_adapter("policy-v2", 3)
    assert torch.equal(weight_of(engine), before) and engine.adapter is None


def test_an_adapter_goes_on_top_of_weights_that_were_loaded_after_another(
    engine, adapter, other_dir
):
    first, added = adapter()
    engine.load_adapter(first, "policy-v1", 1)
    engine.update_weights(str(other_dir), 2)
    assert engine.adapter is None
    base = weight_of(engine).clone()
    engine.load_adapter(first, "policy-v3", 3)
    assert torch.allclose(weight_of(engine), base + 2 * added, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"q_proj": 16}}, 4.0),
        ({"alpha_pattern": {"v_proj": 16}}, 2.0),
    ],
)
def test_the_scale_of_an_adapter_is_that_of_peft(engine, adapter, settings, scale):
    before = weight_of(engine).clone()
    directory, added = adapter(settings=settings)
    engine.load_adapter(directory, "a", 1)
    assert torch.allclose(weight_of(engine), before + scale * added, atol=1e-5)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"settings": {"use_dora": True}}, "use_dora"),
        ({"settings": {"bias": "all"}}, "bias"),
        ({"settings": {"modules_to_save": ["lm_head"]}}, "modules_to_save"),
        ({"tensors": lambda own: dict(list(own.items())[:1])}, "one half"),
        ({"tensors": lambda own: {"base_model.model.x.lora_A.weight": torch.ones(2, 2)}}, "x"),
        (
            {"tensors": lambda own: {k: v[:, :3].contiguous() for k, v in own.items()}},
            "whose weight",
        ),
        ({"tensors": lambda own: {k: v * torch.nan for k, v in own.items()}}, "not finite"),
        ({"tensors": lambda own: {}}, "changes nothing"),
    ],
)
def test_an_adapter_that_cannot_be_merged_leaves_the_weights_unchanged(
    engine, adapter, how, says
):
    good, added = adapter("good")
    engine.load_adapter(good, "policy-v1", 1)
    before = weight_of(engine).clone()
    with pytest.raises(WeightsError, match=says):
        engine.load_adapter(adapter("bad", **how)[0], "policy-v2", 2)
    assert torch.equal(weight_of(engine), before)
    assert (engine.adapter, engine.weight_version) == ("policy-v1", 1)


def test_invalid_adapters_and_unloaded_adapters_are_named(engine, tmp_path):
    with pytest.raises(WeightsError, match="is not a LoRA adapter"):
        engine.load_adapter(str(tmp_path), "a", 1)
    with pytest.raises(WeightsError, match="'b' is not loaded"):
        engine.unload_adapter("b", 1)


# --- broadcast -----------------------------------------------------------------------
