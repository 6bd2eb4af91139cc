"""Model families other than Llama: exact if supported, otherwise rejected by name."""

from __future__ import annotations

import random
from statistics import fmean

import pytest
import torch
import transformers

from atroposlib.errors import ConfigError
from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.served_model import load_model
from atroposlib.testing.tiny import char_tokenizer
from example_trainer.model import loading
from example_trainer.settings.batch import LoadSettings
from tests.inference.helpers import generate, request, worst_difference

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 3,
    "pad_token_id": 4,
    "bos_token_id": None,
}
LONGROPE = {
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [1.0 + i for i in range(8)],
    },
}
GPT2_SHAPE = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "eos_token_id": 3}


@pytest.fixture
def write_family(tmp_path):
    """A random model of a family, with weights wide enough for peaked distributions."""

    def write(config_name, **settings):
        tokenizer = char_tokenizer()
        config = getattr(transformers, config_name)(vocab_size=len(tokenizer), **settings)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        return str(tmp_path)

    return write


@pytest.mark.parametrize(
    ("config_name", "settings", "context"),
    [
        ("Qwen3Config", {**SHAPE, "head_dim": 16}, 128),
        ("MistralConfig", {**SHAPE, "sliding_window": 100}, 100),
        ("GPT2Config", {**GPT2_SHAPE, "bos_token_id": None}, 128),
        ("GraniteConfig", {**SHAPE, "logits_scaling": 3.0}, 128),
        ("CohereConfig", {**SHAPE, "logit_scale": 0.25}, 128),
        ("Gemma2Config", {**SHAPE, "head_dim": 16, "final_logit_softcapping": 5.0}, 128),
        ("Phi3Config", {**SHAPE, **LONGROPE}, 64),
    ],
)
def test_another_model_family_is_exact_within_its_context(
    write_family, config_name, settings, context
):
    served = load_model(write_family(config_name, **settings))
    assert served.max_model_len == context
    engine = Engine(served, EngineLimits(max_batch=5), seed=0)
    engine.start()
    rng = random.Random(0)
    requests = [
        request([rng.randrange(5, 40) for _ in range(1 + 5 * i)], n=2, max_tokens=4 + i)
        for i in range(6)
    ]
    results = generate(engine, *requests)
    engine.close()
    assert worst_difference(served, requests, results) < 1e-4


@pytest.mark.parametrize(
    ("config_name", "settings", "says"),
    [
        ("MambaConfig", {"hidden_size": 64, "num_hidden_layers": 2}, "linear_attention"),
    ],
)
def test_an_unsupported_model_family_is_rejected(write_family, config_name, settings, says):
    with pytest.raises(ConfigError, match=says):
        load_model(write_family(config_name, **settings))


def test_in_bfloat16_the_server_is_nearer_to_the_trainer_than_a_plain_forward(write_family):
    """Logits of real size, whose rounding alone is 0.06 nats: float32 residual and logits."""
    path = write_family("LlamaConfig", **SHAPE)
    served = load_model(path, device="cpu", dtype="bfloat16")
    engine = Engine(served, EngineLimits(), seed=0)
    engine.start()
    try:
        prompts = [[5 + i, 9, 12] for i in range(8)]
        requests = [request(ids, max_tokens=40, ignore_eos=True) for ids in prompts]
        outputs = [result.outputs[0] for result in generate(engine, *requests)]
    finally:
        engine.close()
    sequences = [ids + output.tokens for ids, output in zip(prompts, outputs)]
    settings = LoadSettings(
        model_name=path, device="cpu", dtype="bfloat16", batch_size=8, seq_len=64
    )
    trainer = [ours[2:] for ours in loading.load_policy(settings).logprobs_of(sequences)]
    plain = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    rounded = []
    for sequence in sequences:
        ids = torch.tensor([sequence])
        logprobs = plain(ids).logits.float().log_softmax(-1)[0, 2:-1]
        rounded.append(logprobs.gather(-1, ids[0, 3:, None])[:, 0].tolist())

    def apart(one, other):
        return fmean(abs(a - b) for x, y in zip(one, other) for a, b in zip(x, y))

    sampled = [output.logprobs for output in outputs]
    assert apart(sampled, trainer) < 0.5 * apart(rounded, trainer)
