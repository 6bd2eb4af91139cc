"""Small copies of architectures: what is measured of them holds for the models."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from example_trainer.model import loading, probing
from example_trainer.model.miniature import miniature, shrunk
from example_trainer.model.policy import Policy
from example_trainer.model.scoring import TokenModule, decoder_layers
from tests.trainer.architectures import write
from tests.trainer.families import FAMILIES, TINY, family_of

WITHOUT_A_COPY = {"bamba", "falcon-h1", "granite-moe-hybrid"}  # heads x width of the tiny ones


def build(config):
    return loading.without_dropout(
        AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    )


def copy_of(config):
    with torch.device("meta"):
        whole = build(config)
    return miniature(build, config, whole)


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=pytest.mark.slow if f.slow else ()) for f in FAMILIES],
    ids=lambda family: family.name,
)
def test_a_copy_is_packed_as_its_model_and_has_its_head(family, config, tmp_path):
    settings = config(model_name=str(write(family, tmp_path / "model")), seq_len=256)
    blueprint = loading.Blueprint(
        Policy, TokenModule, AutoModelForCausalLM, settings, settings.model_name
    )
    small = copy_of(blueprint.config())
    assert (small is None) == (family.name in WITHOUT_A_COPY)
    if small is not None:
        whole = blueprint.assemble(blueprint.whole("cpu")[0], "cpu")
        found = probing.probe(blueprint.assemble(small, "cpu"), settings)
        assert found == probing.probe(whole, settings)


def test_a_copy_has_every_kind_of_layer_and_few_of_them():
    config = transformers.Gemma3TextConfig(
        hidden_size=64, head_dim=16, num_hidden_layers=62, intermediate_size=20000
    )
    small = copy_of(config)
    windows = [layer.self_attn.sliding_window for layer in decoder_layers(small)]
    assert windows == [4096] * 5 + [None]
    assert sum(p.numel() for p in small.parameters()) < 1_000_000
    assert config.num_hidden_layers == 62  # untouched


def test_lists_of_layers_are_cut_and_factors_of_positions_are_not():
    config = config_of("phi 3, longrope", num_hidden_layers=8)  # as many as factors
    small = shrunk(config, 2, 8)
    assert small.num_hidden_layers == 2 and small.intermediate_size == 64
    assert len(small.rope_parameters["long_factor"]) == 8
    small = shrunk(config_of("gemma 4"), 2, 4)
    assert small.layer_types == ["sliding_attention", "full_attention"]


def config_of(name, **more):
    family = family_of(name)
    kind = getattr(transformers, f"{family.config}Config")
    return kind(**{**TINY, **family.settings, **more})
