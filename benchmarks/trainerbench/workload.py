"""The rows and the models that every contestant is given, the same in each process."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from atroposlib.testing.tiny import char_tokenizer
from atroposlib.wire import MASKED, MASKED_LOGPROB, MASKED_VERSION
from example_trainer.data.rows import Row

LLAMA, QWEN3 = "llama", "qwen3"


class Shape(NamedTuple):
    """Sizes of a decoder, by the names of its configuration."""

    vocabulary: int
    hidden: int
    mlp: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    family: str = LLAMA
    positions: int = 8192
    tied: bool = True

    @property
    def attention(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def layer_matrices(self) -> int:
        """Parameters of the matrices of a layer."""
        attention = 2 * self.hidden * (self.heads + self.key_heads) * self.head_dim
        return attention + 3 * self.hidden * self.mlp

    @property
    def head(self) -> int:
        """Parameters of the output head."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_matrices + self.head * (1 if self.tied else 2)

    def adapter(self, rank: int) -> int:
        """Parameters of a LoRA adapter on every linear layer but the head."""
        query, keys = self.attention, self.key_heads * self.head_dim
        ends = (self.hidden + query) * 2 + (self.hidden + keys) * 2
        ends += (self.hidden + self.mlp) * 3
        return self.layers * rank * ends


# Sizes of public models, weights random.
SIZES = {
    "tiny": Shape(512, 64, 128, 2, 4, 2, 16),
    "tiny-qwen3": Shape(512, 64, 128, 2, 4, 2, 32, QWEN3),
    "135m": Shape(49152, 576, 1536, 30, 9, 3, 64),  # SmolLM2-135M
    "0.5b": Shape(151936, 896, 4864, 24, 14, 2, 64),  # Qwen2.5-0.5B
    "1.5b": Shape(151936, 1536, 8960, 28, 12, 2, 128),  # Qwen2.5-1.5B
    "0.6b": Shape(151936, 1024, 3072, 28, 16, 8, 128, QWEN3, 131072),  # Qwen3-0.6B
    "4b": Shape(151936, 2560, 9728, 36, 32, 8, 128, QWEN3, 131072),  # Qwen3-4B
}


@dataclass(frozen=True)
class Workload:
    """Everything that decides what a step computes."""

    size: str
    groups: int
    group_size: int
    prompt: int  # tokens of a prompt, the same for the rows of a group
    median: int  # tokens of a completion; lengths are lognormal
    shortest: int
    longest: int
    rows_per_pass: int  # rows of a padded pass; a packed pass gets as many tokens
    device: str
    threads: int
    checkpointing: bool
    seed: int = 0
    model: str = ""  # a directory with weights; empty: made anew
    lora: int = 0  # rank of an adapter on all linear layers; 0: every weight is trained

    @property
    def seq_len(self) -> int:
        return self.prompt + self.longest

    @property
    def budget(self) -> int:
        """Tokens of a pass: the most that the rows of a padded pass come to."""
        return self.rows_per_pass * self.seq_len


def rows_of(load: Workload) -> list[Row]:
    """Groups of ragged rows in random order, as a batch arrives."""
    rng = random.Random(load.seed)
    vocabulary = SIZES[load.size].vocabulary
    rows = []
    for group in range(load.groups):
        prompt = [rng.randrange(8, vocabulary) for _ in range(load.prompt)]
        for _ in range(load.group_size):
            length = round(rng.lognormvariate(0.0, 0.7) * load.median)
            length = min(max(length, load.shortest), load.longest)
            completion = [rng.randrange(8, vocabulary) for _ in range(length)]
            tokens, hidden = prompt + completion, len(prompt) - 1
            rows.append(
                Row(
                    tokens=tokens,
                    labels=[MASKED] * hidden + completion,
                    behaviour_logprobs=[MASKED_LOGPROB] * hidden + [-1.0] * length,
                    versions=[MASKED_VERSION] * hidden + [0] * length,
                    reward=rng.gauss(0, 1),
                    group=str(group),
                )
            )
    rng.shuffle(rows)
    return rows


def model_config(size: str, **special_tokens: Any) -> Any:
    """The configuration of a transformers model of this size."""
    from transformers import LlamaConfig, Qwen3Config

    shape = SIZES[size]
    kind = Qwen3Config if shape.family == QWEN3 else LlamaConfig
    return kind(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=shape.tied,
        **special_tokens,
    )


def write_model(directory: Path, load: Workload) -> Path:
    """A configuration without weights, and a tokenizer that no contestant uses."""
    name = "Qwen3ForCausalLM" if SIZES[load.size].family == QWEN3 else "LlamaForCausalLM"
    special_tokens = {"pad_token_id": 0, "eos_token_id": 1}
    config = model_config(load.size, **special_tokens, architectures=[name])
    config.save_pretrained(directory)
    char_tokenizer().save_pretrained(directory)
    return directory


def useful_flops(rows: list[Row], load: Workload) -> float:
    """Forward and backward of the rows as they are: no padding, nothing computed twice.

    6 per trained weight and token, 4 per frozen weight (its gradient is not computed), 6 per
    layer, query value, query and key of causal attention (of which half is skipped), the head
    where a token is trained. What sharing a prefix spares is not subtracted, nor is
    recomputation added.
    """
    shape = SIZES[load.size]
    per_weight = 4 if load.lora else 6
    weights = per_weight * shape.layers * shape.layer_matrices
    if load.lora:
        weights += 6 * shape.adapter(load.lora)
    total = 0.0
    for row in rows:
        length = len(row.tokens)
        total += weights * length + 6 * shape.layers * shape.attention * length**2
        total += per_weight * shape.head * len(row.trained)
    return total
