"""Frozen weights in bfloat16 against the same ones in float32: every bit of the results."""

from __future__ import annotations

import pytest
import torch

from example_trainer.distributed.ranks import Ranks
from example_trainer.model import adapter, frozen, loading, state_dict
from tests.trainer.architectures import write
from tests.trainer.families import family_of
from tests.trainer.rows import BRANCHING, ROWS

FAMILIES = ("llama", "llama, tied", "qwen2", "gemma", "gemma 3", "gpt2", "mixtral", "mamba 2")
LORA = {"lora": True, "lora_target_modules": ["q_proj", "down_proj"]}


@pytest.fixture
def families(tmp_path):
    """The directory of a model of a family, with logits as large as trained ones have."""

    def model_of(name):
        return str(write(family_of(name), tmp_path / name, std=0.2))

    return model_of


@pytest.fixture
def pair(monkeypatch):
    """Load a model twice: with its frozen weights in the compute dtype, and in float32."""

    def load_both(load):
        low = load()
        with monkeypatch.context() as patch:
            patch.setattr(frozen, "hold_in", lambda *args, **options: None)
            return low, load()

    return load_both


def dtypes(policy):
    return {str(p.dtype) for p in policy.module.parameters() if not p.requires_grad}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_reference_or_teacher_in_bfloat16_has_every_logprob_of_one_in_float32(
    config, families, pair, name
):
    cfg = config(model_name=families(name), dtype="bfloat16")
    low, full = pair(lambda: loading.load_reference(cfg, cfg.model_name))
    assert "torch.bfloat16" in dtypes(low) and dtypes(full) == {"torch.float32"}
    rows = [*ROWS, *BRANCHING]
    assert low.trained_logprobs(rows) == full.trained_logprobs(rows)
    policy = loading.load_policy(cfg)  # its weights are trained, and float32
    assert {str(p.dtype) for p in policy.parameters()} == {"torch.float32"}
    assert policy.trained_logprobs(rows) == low.trained_logprobs(rows)  # a KL of exactly 0


def test_an_adapter_on_a_base_in_bfloat16_has_the_scores_and_gradients_of_one_in_float32(
    config, pair
):
    cfg = config(dtype="bfloat16", **LORA)

    def load():
        policy = loading.load_policy(cfg, Ranks.single())
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for layer in adapter.adapted_layers(policy.model).values():
                layer.lora_B["default"].weight.normal_(generator=generator, std=0.1)
        return policy

    policies = pair(load)
    for policy in policies:
        for plan in policy.plan(ROWS):
            policy.score(plan).logprobs.sum().backward()
    low, full = policies
    assert low.trained_logprobs(ROWS) == full.trained_logprobs(ROWS)
    assert {p.dtype for p in low.parameters()} == {torch.float32}
    for ours, theirs in zip(low.parameters(), full.parameters()):
        assert ours.grad is not None and torch.equal(ours.grad, theirs.grad)


def test_a_merged_adapter_is_published_within_one_rounding_of_bfloat16(config, pair):
    cfg = config(dtype="bfloat16", **LORA)
    low, full = pair(lambda: loading.load_policy(cfg, Ranks.single()))
    with torch.no_grad():
        for policy in (low, full):
            for parameter in policy.parameters():
                parameter.fill_(0.01)
    ours, theirs = (dict(state_dict.export_weights(p, untie_head=False)) for p in (low, full))
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert weight.dtype is torch.bfloat16
        if "q_proj" not in name and "down_proj" not in name:
            assert torch.equal(weight, theirs[name]), name
        distance = (weight.float() - theirs[name].float()).abs()
        # Each of both roundings is of at most half a unit in the last place, of 8 bits.
        largest = torch.maximum(weight.float().abs(), theirs[name].float().abs()) + 0.02
        assert (distance <= largest / 128).all(), name


def test_layers_that_do_not_train_are_bfloat16_and_those_that_do_are_float32(config):
    policy = loading.load_policy(config(dtype="bfloat16", train_layer_indices=[1]))
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    layers = policy.model.model.layers
    assert layers[0].self_attn.q_proj.weight.dtype is torch.bfloat16
    assert layers[0].input_layernorm.weight.dtype is torch.float32


def test_in_float32_nothing_is_rounded(config):
    assert dtypes(loading.load_reference(config(dtype="float32"))) == {"torch.float32"}


def test_norms_biases_scaled_embeddings_and_stacked_experts_stay_exact(config, families):
    def low_weights(name):
        cfg = config(model_name=families(name), dtype="bfloat16")
        model = loading.load_reference(cfg, cfg.model_name).model
        return {n for n, p in model.named_parameters() if p.dtype is torch.bfloat16}

    assert not any("embed" in name for name in low_weights("gemma 3"))
    assert not any("experts" in name or "norm" in name for name in low_weights("mixtral"))
    assert not any("bias" in name or "wpe" in name for name in low_weights("gpt2"))


@pytest.mark.alone
def test_two_ranks_with_frozen_weights_in_bfloat16_have_the_bits_of_float32_ones(ranks):
    for rank in ranks:
        found = rank["held_low"]
        for case in ("reference", "mixtral", "lora"):
            assert found[case]["dtypes"] == [["torch.bfloat16"], ["torch.float32"]], case
            assert found[case]["same logprobs"], case
        assert found["lora"]["same gradients"]
        assert found["lora"]["trained"] == ["torch.float32"]
        assert found["kl to itself"] == 0.0
