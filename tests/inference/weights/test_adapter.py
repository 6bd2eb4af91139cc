"""LoRA adapters: loading, merging, unloading and errors."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from atroposlib.errors import WeightsError

EXACT = 1e-4
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
