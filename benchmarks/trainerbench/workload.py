"""The rows and the models that every contestant is given, the same in each process."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atroposlib.testing.tiny import char_tokenizer
from atroposlib.wire import MASKED, MASKED_LOGPROB, MASKED_VERSION
from example_trainer.data.rows import Row

# Sizes of public models, weights random. (vocabulary, hidden, MLP, layers, heads, key heads)
SIZES = {
    "tiny": (512, 64, 128, 2, 4, 2),
    "135m": (49152, 576, 1536, 30, 9, 3),  # as SmolLM2-135M
    "0.5b": (151936, 896, 4864, 24, 14, 2),  # as Qwen2.5-0.5B
    "1.5b": (151936, 1536, 8960, 28, 12, 2),  # as Qwen2.5-1.5B
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
    rows_per_pass: int  # of contestants that pad; the others get as many tokens
    device: str
    threads: int
    checkpointing: bool
    seed: int = 0
    model: str = ""  # a directory with weights; without one they are made anew

    @property
    def seq_len(self) -> int:
        return self.prompt + self.longest

    @property
    def budget(self) -> int:
        """Tokens of a pass: what the rows of a padded one may come to."""
        return self.rows_per_pass * self.seq_len


def rows_of(load: Workload) -> list[Row]:
    """Groups of ragged rows in random order, as a batch arrives."""
    rng = random.Random(load.seed)
    vocabulary = SIZES[load.size][0]
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


def llama_shape(size: str) -> dict[str, Any]:
    """Arguments of ``LlamaConfig`` for a model of this size."""
    vocabulary, hidden, mlp, layers, heads, key_heads = SIZES[size]
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }


def write_model(directory: Path, load: Workload) -> Path:
    """A configuration without weights, and a tokenizer that no contestant uses."""
    from transformers import LlamaConfig

    LlamaConfig(
        **llama_shape(load.size),
        pad_token_id=0,
        eos_token_id=1,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(directory)
    char_tokenizer().save_pretrained(directory)
    return directory


def useful_flops(rows: list[Row], load: Workload) -> float:
    """Forward and backward of the rows as they are: no padding, nothing computed twice.

    6 per weight and token, 6 per layer, hidden value, query and key of causal attention (of
    which half is skipped), the head where a token is trained. What sharing a prefix spares
    is not subtracted, nor is recomputation added.
    """
    vocabulary, hidden, mlp, layers, heads, key_heads = SIZES[load.size]
    layer = hidden * hidden * (2 + 2 * key_heads / heads) + 3 * hidden * mlp
    total = 0.0
    for row in rows:
        length = len(row.tokens)
        total += 6 * layers * layer * length + 6 * layers * hidden * length**2
        total += 6 * vocabulary * hidden * len(row.trained)
    return total
