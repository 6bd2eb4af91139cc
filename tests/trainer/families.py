"""Architectures of transformers as tiny configurations, and how the trainer runs each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SHARED, PACKED, PADDED, REFUSED = "shared", "packed", "padded", "refused"
CONTEXT = 256

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}
LAYERS, FOUR = {"num_hidden_layers": 3}, {"num_hidden_layers": 4}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
DEEPSEEK = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 16,
}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


FACTORS = {"short_factor": [1.0] * 8, "long_factor": [1.0 + i for i in range(8)]}
ORIGINAL = {"original_max_position_embeddings": 64}
LONGROPE = {**ORIGINAL, **rope("longrope", **FACTORS)}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
OWN_NAMES = {"hidden_size": 64, "num_hidden_layers": 2}


@dataclass(frozen=True)
class Family:
    """A configuration class of transformers, and how its models are to be run."""

    name: str
    config: str
    how: str
    settings: dict[str, Any] = field(default_factory=dict)
    bare: bool = False  # without TINY
    slow: bool = True


FAMILIES = [
    Family("llama", "Llama", SHARED, slow=False),
    Family("llama, tied", "Llama", SHARED, {"tie_word_embeddings": True, "head_dim": 24}),
    Family(
        "llama, llama3 rope",
        "Llama",
        SHARED,
        rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL),
    ),
    Family("llama, yarn", "Llama", SHARED, rope("yarn", factor=4.0, **ORIGINAL)),
    Family("llama, dynamic", "Llama", SHARED, rope("dynamic", factor=4.0), slow=False),
    Family(
        "llama, longrope", "Llama", SHARED, rope("longrope", factor=4.0, **FACTORS, **ORIGINAL)
    ),
    Family("qwen2", "Qwen2", SHARED),
    Family("qwen3", "Qwen3", SHARED, {"head_dim": 24}),
    Family("mistral", "Mistral", SHARED, {"sliding_window": None}),
    Family("ministral", "Ministral3", SHARED),
    Family("gemma", "Gemma", SHARED, {"head_dim": 16}),
    Family("gemma 3", "Gemma3Text", SHARED, {"head_dim": 16, "sliding_window": CONTEXT}),
    Family("phi", "Phi", SHARED),
    Family("phi 3", "Phi3", SHARED, {"sliding_window": None, "pad_token_id": 0}),
    Family(
        "phi 3, longrope",
        "Phi3",
        SHARED,
        {"sliding_window": None, "pad_token_id": 0, **LONGROPE},
        slow=False,
    ),
    Family("gpt2", "GPT2", SHARED, GPT2, bare=True),
    Family("gpt-neox", "GPTNeoX", SHARED),
    Family("opt", "OPT", SHARED, {"ffn_dim": 128, "word_embed_proj_dim": 64}),
    Family("starcoder 2", "Starcoder2", SHARED, {"sliding_window": None}),
    Family("olmo", "Olmo", SHARED),
    Family("olmo 2", "Olmo2", SHARED),
    Family("smollm3", "SmolLM3", SHARED, {"pad_token_id": 0}),
    Family("glm 4", "Glm4", SHARED, {"head_dim": 16, "pad_token_id": 0}),
    Family("ernie 4.5", "Ernie4_5", SHARED, {"head_dim": 16}),
    Family("exaone 4", "Exaone4", SHARED, {"sliding_window": CONTEXT, "head_dim": 16}),
    Family("mixtral", "Mixtral", SHARED, LOCAL_EXPERTS, slow=False),
    Family("qwen3-moe", "Qwen3Moe", SHARED, {**EXPERTS, "head_dim": 16}),
    Family("deepseek-v3", "DeepseekV3", SHARED, DEEPSEEK, slow=False),
    Family(
        "granite",
        "Granite",
        SHARED,
        {"logits_scaling": 3.0, "embedding_multiplier": 2.0},
        slow=False,
    ),
    Family("granite-moe", "GraniteMoe", SHARED, {**LOCAL_EXPERTS, "logits_scaling": 0.25}),
    Family("cohere", "Cohere", SHARED, {"logit_scale": 0.5}, slow=False),
    Family(
        "cohere 2", "Cohere2", SHARED, {**FOUR, "sliding_window": CONTEXT, "logit_scale": 3.0}
    ),
    Family("nanochat", "NanoChat", SHARED, {"final_logit_softcapping": 5.0}),
    Family("hyperclovax", "HyperCLOVAX", SHARED, {"logits_scaling": 3.0}),
    Family(
        "minicpm 3",
        "MiniCPM3",
        SHARED,
        {k: v for k, v in DEEPSEEK.items() if "rank" in k or "heads" in k or "dim" in k},
    ),
    Family(
        "llama 4",
        "Llama4Text",
        SHARED,
        {
            **FOUR,
            **LOCAL_EXPERTS,
            "num_experts_per_tok": 1,
            "head_dim": 16,
            "intermediate_size_mlp": 128,
            "attention_chunk_size": CONTEXT,
        },
        slow=False,
    ),
    Family(
        "gemma 2, no caps",
        "Gemma2",
        SHARED,
        {
            "head_dim": 16,
            "final_logit_softcapping": None,
            "attn_logit_softcapping": None,
            "sliding_window": CONTEXT,
        },
    ),
    Family(
        "phi-moe",
        "Phimoe",
        SHARED,
        {
            **LOCAL_EXPERTS,
            "sliding_window": None,
            **ORIGINAL,
            **rope("longrope", short_mscale=1.0, long_mscale=1.2, **FACTORS),
        },
    ),
    Family("olmo 3", "Olmo3", SHARED, {"sliding_window": CONTEXT}),
    Family("olmoe", "Olmoe", SHARED, {"num_experts": 4, "num_experts_per_tok": 2}),
    Family("gpt-bigcode", "GPTBigCode", SHARED, GPT2, bare=True),
    Family("diff-llama", "DiffLlama", SHARED),
    Family(
        "gemma 4",
        "Gemma4Text",
        SHARED,
        {
            **FOUR,
            "head_dim": 16,
            "global_head_dim": 16,
            "sliding_window": CONTEXT,
            "final_logit_softcapping": 5.0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 50,
        },
    ),
    Family("hunyuan", "HunYuanDenseV1", SHARED, {"head_dim": 16}),
    Family("bert", "BertGeneration", SHARED, {"is_decoder": True}),
    Family(
        "gemma 3n",
        "Gemma3nText",
        SHARED,
        {
            **FOUR,
            "head_dim": 16,
            "sliding_window": CONTEXT,
            "final_logit_softcapping": 5.0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 50,
        },
    ),
    Family("nemotron", "Nemotron", PADDED),
    Family(
        "lfm2",
        "Lfm2",
        PADDED,
        {**LAYERS, "layer_types": ["full_attention", "conv", "full_attention"]},
    ),
    Family(
        "gemma 2",
        "Gemma2",
        PADDED,
        {"head_dim": 16, "final_logit_softcapping": 5.0, "sliding_window": CONTEXT},
        slow=False,
    ),
    Family("mistral, window", "Mistral", PADDED, {"sliding_window": 32}),
    Family(
        "qwen2, window",
        "Qwen2",
        PADDED,
        {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1},
    ),
    Family("gemma 3, window", "Gemma3Text", PADDED, {"head_dim": 16, "sliding_window": 32}),
    Family(
        "phi 3, longrope, window",
        "Phi3",
        PADDED,
        {"sliding_window": 32, "pad_token_id": 0, **LONGROPE},
    ),
    Family(
        "gpt-neo",
        "GPTNeo",
        PADDED,
        {
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 32,
            "max_position_embeddings": CONTEXT,
        },
        bare=True,
    ),
    Family(
        "bloom", "Bloom", PADDED, {"hidden_size": 64, "n_layer": 2, "n_head": 4}, bare=True
    ),
    Family("falcon", "Falcon", PADDED),
    Family("stablelm", "StableLm", PADDED),
    Family(
        "gpt-oss",
        "GptOss",
        PADDED,
        {
            **LOCAL_EXPERTS,
            "head_dim": 16,
            "sliding_window": CONTEXT,
            **rope("yarn", factor=4.0, **ORIGINAL),
        },
        slow=False,
    ),
    Family(
        "llama 4, chunks",
        "Llama4Text",
        PADDED,
        {
            **FOUR,
            **LOCAL_EXPERTS,
            "num_experts_per_tok": 1,
            "head_dim": 16,
            "intermediate_size_mlp": 128,
            "attention_chunk_size": 32,
        },
    ),
    Family("mamba", "Mamba", PADDED, {**OWN_NAMES, "state_size": 8}, bare=True, slow=False),
    Family(
        "mamba 2",
        "Mamba2",
        PADDED,
        {
            **OWN_NAMES,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 1,
            "chunk_size": 16,
        },
        bare=True,
    ),
    Family(
        "jamba",
        "Jamba",
        PADDED,
        {
            **FOUR,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 2,
            "mamba_d_state": 8,
            "use_mamba_kernels": False,
        },
    ),
    Family(
        "qwen3-next",
        "Qwen3Next",
        PADDED,
        {
            **FOUR,
            **EXPERTS,
            "head_dim": 16,
            "shared_expert_intermediate_size": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
    ),
    Family(
        "granite-moe-hybrid",
        "GraniteMoeHybrid",
        PADDED,
        {
            **LOCAL_EXPERTS,
            **MAMBA2,
            "layer_types": ["mamba", "attention"],
            "logits_scaling": 3.0,
            "shared_intermediate_size": 64,
        },
    ),
    Family(
        "falcon-h1",
        "FalconH1",
        PADDED,
        {**MAMBA2, "mamba_d_ssm": 128, "lm_head_multiplier": 0.5},
    ),
    Family("gpt-j", "GPTJ", PADDED, {**GPT2, "rotary_dim": 8}, bare=True),
    Family(
        "mpt",
        "Mpt",
        PADDED,
        {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": CONTEXT},
        bare=True,
    ),
    Family(
        "recurrent-gemma",
        "RecurrentGemma",
        PADDED,
        {**LAYERS, "lru_width": 64, "attention_window_size": 32, "logits_soft_cap": 5.0},
    ),
    Family(
        "xlstm",
        "xLSTM",
        PADDED,
        {"hidden_size": 64, "num_blocks": 2, "num_heads": 4, "output_logit_soft_cap": 5.0},
        bare=True,
    ),
    Family(
        "rwkv",
        "Rwkv",
        PADDED,
        {**OWN_NAMES, "attention_hidden_size": 64, "context_length": CONTEXT},
        bare=True,
    ),
    Family("bamba", "Bamba", PADDED, {**MAMBA2, "attn_layer_indices": [1]}),
    Family("nemotron-h", "NemotronH", PADDED, {}),
]


def family_of(name: str) -> Family:
    """The family of this name."""
    return next(family for family in FAMILIES if family.name == name)
