"""Tiny random models of many architectures: the trainer's logprobs against a plain forward.

``python -m tests.trainer.architectures [NAME ...]`` measures them and prints the list
of docs/trainer.md, the largest difference of each and the sentences of refusals.
"""

from __future__ import annotations

import sys
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atroposlib.errors import ConfigError
from atroposlib.testing.tiny import char_tokenizer
from example_trainer.model import loading
from example_trainer.settings.config import TrainingConfig
from tests.trainer.families import (
    CONTEXT,
    FAMILIES,
    PACKED,
    PADDED,
    REFUSED,
    SHARED,
    TINY,
    Family,
)
from tests.trainer.rows import at, row

TEXTS = {
    SHARED: "packed, shared prefixes once",
    PADDED: "a line per row, padded",
    REFUSED: "refused",
}
PAGE_WIDTH = 110
TOLERANCE = 1e-4  # nats, of float32


def write(family: Family, directory: Path, std: float = 0.2) -> Path:
    """Save the model of :func:`model_of` with a tokenizer."""
    model_of(family, std).save_pretrained(directory)
    char_tokenizer().save_pretrained(directory)
    return directory


def model_of(family: Family, std: float = 0.2) -> Any:
    """A model with weights so wide that attention is far from uniform."""
    import transformers

    sizes = {**({} if family.bare else TINY), **family.settings}
    ends = {"eos_token_id": 3, "bos_token_id": None, "vocab_size": len(char_tokenizer())}
    config = getattr(transformers, f"{family.config}Config")(**{**ends, **sizes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=std)
    return model


def rows() -> list[Any]:
    """Rows of 4 to 198 tokens, most with a beginning in common, at three temperatures."""
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(5, 40, (198,), generator=generator).tolist()
    lengths = ((4, 1.0), (10, 0.7), (10, 0.7), (33, 1.3), (63, 1.3), (64, 1.0), (65, 1.0),
               (66, 1.0), (120, 0.7), (198, 1.0))  # fmt: skip
    made = []
    for length, temperature in lengths:
        tokens = text[: length - 1] + [5 + len(made)]
        made.append(at(temperature, row(tokens[:2], tokens[2:], group="g")))
    return made


@torch.no_grad()
def plain_logprobs(directory: Path, rows: list[Any]) -> list[list[float]]:
    """One forward pass per row, over what predicts a trained token."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    found = []
    for one in rows:
        tokens = torch.tensor([one.tokens[: one.trained[-1] + 1]])
        logits = model(tokens, use_cache=False).logits[0] / one.trained_temperatures[0]
        scored = logits.log_softmax(-1)
        found.append([scored[j, one.labels[j]].item() for j in one.trained])
    return found


@dataclass(frozen=True)
class Finding:
    how: str
    largest: float = 0.0  # difference in nats
    sentence: str = ""  # of a refusal


def measure(family: Family, directory: Path) -> Finding:
    """How the trainer runs the model, and how far its logprobs are from a plain forward."""
    write(family, directory)
    cfg = TrainingConfig(
        model_name=str(directory), device="cpu", seq_len=CONTEXT, inference_urls=[]
    )
    try:
        policy = loading.load_policy(cfg)
    except ConfigError as error:
        return Finding(REFUSED, sentence=str(error))
    policy.attention_crossover = float("inf")  # share wherever it is possible
    ours = policy.trained_logprobs(rows())
    expected = plain_logprobs(directory, rows())
    largest = max(abs(a - b) for xs, ys in zip(ours, expected) for a, b in zip(xs, ys))
    how = PADDED if policy.padded else SHARED if policy.share_prefixes else PACKED
    return Finding(how, largest)


def table(found: Mapping[str, Finding]) -> str:
    """Families by how they are run, in Markdown; what was not measured has no difference."""
    lines = []
    for how, text in TEXTS.items():
        if not (names := [family.name for family in FAMILIES if family.how == how]):
            continue
        measured = [found[name].largest for name in names if name in found]
        largest = f"{max(measured):.0e}" if measured else ""
        line = f"* **{text}**, largest difference {largest}: {'; '.join(names)}"
        lines += textwrap.wrap(
            line, PAGE_WIDTH, subsequent_indent="  ", break_on_hyphens=False
        )
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    found = {}
    for family in FAMILIES:
        if family.name in (sys.argv[1:] or [family.name]):
            with tempfile.TemporaryDirectory() as directory:
                found[family.name] = measure(family, Path(directory))
            print(family.name, found[family.name], file=sys.stderr, flush=True)
    print(table(found))


if __name__ == "__main__":
    main()
