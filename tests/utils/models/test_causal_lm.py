"""What trainer and server know of a transformers model: its decoder, and what follows its head."""

from __future__ import annotations

import pytest
import torch
import transformers

from atroposlib.errors import ConfigError
from atroposlib.utils.models.causal_lm import LogitTransform, decoder, measured_transform

TOKENS = torch.arange(1, 7)[None]
SHAPE = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


@pytest.fixture
def make():
    def make(kind, **settings):
        config = getattr(transformers, f"{kind}Config")(**SHAPE, **settings)
        return transformers.AutoModelForCausalLM.from_config(config).eval()

    return make


@torch.no_grad()
def measured(model, tolerance=1e-5):
    return measured_transform(model, TOKENS, tolerance)


def test_a_plain_head_changes_nothing(make):
    products = torch.randn(3)
    assert measured(make("Llama")) == LogitTransform()
    assert LogitTransform()(products) is products


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("Granite", {"logits_scaling": 4.0}, LogitTransform(0.25)),
        ("Cohere", {"logit_scale": 0.0625}, LogitTransform(0.0625)),
        ("Gemma2", {"final_logit_softcapping": 30.0}, LogitTransform(1.0, 30.0)),
    ],
)
def test_scales_and_caps_are_those_that_the_model_applies(make, kind, settings, expected):
    assert measured(make(kind, **settings)) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cap_is_told_from_none_in_any_precision(make, dtype):
    model = make("Gemma2", final_logit_softcapping=30.0).to(dtype)
    assert measured(model, 1e-5 if dtype is torch.float32 else 0.02) == LogitTransform(
        1.0, 30.0
    )


def test_a_cap_that_the_configuration_does_not_name_is_not_guessed(make):
    model = make("Gemma2", final_logit_softcapping=30.0)
    forward = type(model).forward
    model.forward = lambda *args, **kwargs: _squared(forward(model, *args, **kwargs))
    assert measured(model) is None


def _squared(output):
    output.logits = output.logits**2
    return output


def test_the_decoder_of_a_model_that_does_not_name_it_is_found(make):
    model = make("Llama4Text", num_local_experts=2, intermediate_size_mlp=16)
    assert decoder(model) is model.model


def test_a_model_without_a_decoder_is_refused(make):
    with pytest.raises(ConfigError, match="LlamaModel has no decoder"):
        decoder(make("Llama").model)
