"""Tests of LoRA adapters: training, merging, loading with peft."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from atroposlib.errors import ConfigError
from example_trainer.model import adapter, state_dict
from tests.trainer.rows import ROWS, SEQUENCES


def test_untrained_adapter_leaves_the_scores_unchanged(config, policy):
    before = policy.logprobs_of(SEQUENCES)
    adapter.wrap(policy.model, config(lora=True))
    assert policy.logprobs_of(SEQUENCES) == before


def test_only_the_adapter_trains(adapted):
    policy = adapted(lora_r=4)
    names = [n for n, p in policy.model.named_parameters() if p.requires_grad]
    assert len(names) == 2 * 2 * 2 and all(".lora_" in name for name in names)
    assert {min(p.shape) for p in policy.parameters()} == {4}
    for plan in policy.plan(ROWS):
        policy.score(plan).logprobs.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in policy.parameters())
    assert policy.model.get_input_embeddings().weight.grad is None


def test_adapter_covers_the_configured_modules_and_layers(adapted):
    policy = adapted(lora_target_modules=["up_proj", "o_proj"], lora_layer_indices=[1])
    assert list(adapter.adapted_layers(policy.model)) == [
        "model.layers.1.self_attn.o_proj",
        "model.layers.1.mlp.up_proj",
    ]


def test_all_linear_is_every_layer_but_the_head(adapted):
    policy = adapted(lora_target_modules=["all-linear"])
    assert len(adapter.adapted_layers(policy.model)) == 2 * 7


def test_every_rank_starts_with_the_same_adapter(adapted):
    ours, theirs = adapted(seed=3), adapted(seed=3)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters()))


def test_the_adapted_weight_is_w_plus_scaled_b_a(adapted):
    policy = adapted(lora_r=4, lora_alpha=12)
    name, layer = next(iter(adapter.adapted_layers(policy.model).items()))
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    expected = layer.base_layer.weight + 12 / 4 * b @ a
    merged = state_dict.full_weights(policy)[f"{name}.weight"]
    assert torch.allclose(merged, expected.detach(), atol=1e-5)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's own
def test_peft_loads_a_saved_adapter(adapted, config, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    policy = adapted(lora_target_modules=["q_proj", "up_proj"], lora_layer_indices=[0])
    adapter.write_adapter(policy, state_dict.adapter_weights(policy), tmp_path / "adapter")
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == config().model_name
    assert (written["lora_dropout"], written["inference_mode"]) == (0.0, True)
    base = AutoModelForCausalLM.from_pretrained(config().model_name)
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    for tokens, expected in zip(SEQUENCES, policy.logprobs_of(SEQUENCES)):
        logits = loaded(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        found = logits.gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]
        assert found.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"lora_target_modules": ["query"]}, "lora_target_modules"),
        ({"lora_target_modules": ["embed_tokens"]}, "embed_tokens is not a linear layer"),
        ({"lora_target_modules": ["lm_head"]}, "lm_head is the output head"),
        ({"lora_layer_indices": [1, 2]}, r"\[2\]: the model has layers 0-1"),
        ({"train_layer_indices": [1]}, "lora_layer_indices"),
        ({"freeze": ["*norm*"]}, "lora trains an adapter only"),
    ],
)
def test_an_impossible_adapter_is_refused(policy, config, settings, told):
    with pytest.raises(ConfigError, match=told):
        adapter.wrap(policy.model, config(lora=True, **settings))


def test_without_peft_its_extra_is_named(policy, config, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"atropos-rl\[lora\]"):
        adapter.wrap(policy.model, config(lora=True))


def test_a_policy_without_adapter_has_none_to_save(policy):
    with pytest.raises(ConfigError, match="no adapter"):
        state_dict.adapter_weights(policy)


@pytest.mark.alone
def test_an_adapter_trains_on_two_ranks_as_on_one(ranks, policy):
    first, second = (found["adapter_run"] for found in ranks)
    assert first["distance"] < 1e-5 < 1e-2 < first["moved"]
    assert first["trained"] == 2 * 2 * 2  # A and B of two modules in two layers
    assert first["names"] == sorted(policy.model.state_dict()) and second["names"] == []
    assert first["same again"] and second["same again"]
    assert "merged adapter" in first["refused"] and first["refused"] == second["refused"]
    saved = ranks[0]["directory"] / "adapter"
    assert sorted(p.name for p in saved.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
