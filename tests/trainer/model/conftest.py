"""Models with adapters or grouped queries, and transformers' own eager attention."""

from __future__ import annotations

import pytest
import torch

from example_trainer.model import adapter, loading


@pytest.fixture(scope="session")
def gqa_dir(tmp_path_factory):
    """A Qwen2 with two query heads to a key head, biases, and a separate output head."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from atroposlib.testing.tiny import char_tokenizer

    directory = tmp_path_factory.mktemp("gqa")
    tokenizer = char_tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        initializer_range=0.2,  # attention that is far from uniform
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def reference(gqa_dir):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(gqa_dir, attn_implementation="eager")


@pytest.fixture
def gqa_policy(config, gqa_dir):
    made = loading.load_policy(config(model_name=str(gqa_dir)))
    made.attention_crossover = float("inf")
    return made


@pytest.fixture
def adapted(config):
    """Build a policy with a nonzero adapter: B is not zero."""

    def make(**settings):
        cfg = config(lora=True, **settings)
        policy = loading.load_policy(cfg)
        if not adapter.adapted_layers(policy.model):
            adapter.wrap(policy.model, cfg)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for layer in adapter.adapted_layers(policy.model).values():
                layer.lora_B["default"].weight.normal_(generator=generator)
        return policy

    return make
