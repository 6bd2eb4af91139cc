"""Tiny causal language model with random weights, and its tokenizer.

For tests and ``make quickstart MODEL=tiny``, without a download: a two-layer Llama of 0.44 M
parameters and a tokenizer with a token per character.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 .,:?+-=\n"
# ALPHABET and the rest of printable ASCII, for texts with tags, JSON or TeX.
ASCII_ALPHABET = ALPHABET + "".join(c for c in map(chr, range(32, 127)) if c not in ALPHABET)
ROLE_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tiny_model(
    directory: Path,
    *,
    seed: int = 0,
    hidden_size: int = 128,
    num_layers: int = 2,
    num_heads: int = 4,
    max_positions: int = 256,
    alphabet: str = ALPHABET,
) -> Path:
    """Write a random Llama (config, safetensors, tokenizer) into ``directory``.

    About 0.44 M parameters at the defaults. The same seed gives the same weights.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = char_tokenizer(alphabet)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def write_char_tokenizer(directory: Path, alphabet: str = ALPHABET) -> Path:
    """Write the files of :func:`char_tokenizer`, without transformers."""
    backend = char_backend(alphabet)
    backend.add_special_tokens(list(ROLE_TOKENS))
    directory.mkdir(parents=True, exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ROLE_TOKENS[:3]}
    text = json.dumps({**config, "eos_token": "<|end|>", "pad_token": "<|pad|>"})
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return directory


def char_backend(alphabet: str = ALPHABET) -> Any:
    """Backend of :func:`char_tokenizer`, of the package tokenizers."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocab = {token: i for i, token in enumerate((*ROLE_TOKENS, *alphabet))}
    backend: Any = Tokenizer(models.WordLevel(vocab, unk_token="<|pad|>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def char_tokenizer(alphabet: str = ALPHABET) -> Any:
    """A token per character and per role marker; ``<|end|>`` ends a turn."""
    from transformers import PreTrainedTokenizerFast

    wrap: Any = PreTrainedTokenizerFast  # untyped in transformers
    return wrap(
        tokenizer_object=char_backend(alphabet),
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=list(ROLE_TOKENS[:3]),
        chat_template=CHAT_TEMPLATE,
    )
