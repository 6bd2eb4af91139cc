"""Models that no rank ever holds whole."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import LlamaForCausalLM

from example_trainer.model.sharded import without_weights


@pytest.mark.alone
def test_each_rank_loads_its_part_of_the_same_bits(ranks):
    cases = ranks[0]["loaded"]
    assert len(cases) == 13 and cases.keys() == ranks[1]["loaded"].keys()
    for found in (*cases.values(), *ranks[1]["loaded"].values()):
        assert found["same"] and found["measured alike"]
        assert found["held"] == pytest.approx(0.5, abs=0.02)


def test_a_model_of_any_size_is_built_without_memory_and_its_buffers_have_their_values():
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = transformers.LlamaConfig(hidden_size=64, tie_word_embeddings=True, **sizes)
    ours, theirs = (
        build(lambda: LlamaForCausalLM(config)) for build in (without_weights, apply)
    )
    assert all(parameter.is_meta for parameter in ours.parameters())
    assert ours.lm_head.weight is ours.model.embed_tokens.weight
    assert torch.equal(ours.model.rotary_emb.inv_freq, theirs.model.rotary_emb.inv_freq)
    config.hidden_size = config.intermediate_size = 10**6
    assert without_weights(lambda: LlamaForCausalLM(config)).num_parameters() > 10**12


def apply(build):
    return build()
