"""Figures of a check, what they are held against, and the place where checks run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENTROPY = 1.5  # nats at a token, as of a trained model that writes freely


@dataclass(frozen=True)
class Figure:
    """One line of the page. ``bound`` is a limit, or the reference of a ratio."""

    what: str
    value: str
    bound: str = ""
    ok: bool = True


def below(what: str, value: float, limit: float, unit: str = "") -> Figure:
    """A value that must not pass a limit; NaN does."""
    return Figure(what, f"{value:.3g}{unit}", f"<= {limit:g}{unit}", value <= limit)


def above(what: str, value: float, limit: float) -> Figure:
    return Figure(what, f"{value:.3g}", f">= {limit:g}", value >= limit)


def holds(what: str, value: object, bound: str, ok: bool) -> Figure:
    return Figure(what, str(value), bound, ok)


def ratio(what: str, ours: float, theirs: float, unit: str, reference: str) -> Figure:
    """A speed and its ratio to a reference of the same run; never a reason to fail."""
    return Figure(what, f"{ours:,.0f} {unit}", f"{ours / theirs:.2f} x {reference}")


@dataclass(frozen=True)
class Place:
    """Where a check runs: device, folder for models and runs, and shape of the model."""

    device: str  # cuda or cpu
    scratch: Path
    wanted: str = "135m"

    @property
    def on_cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def patience(self) -> float:
        """Factor of bounds: a dry run shares its cores with others."""
        return 1.0 if self.on_cuda else 10.0

    @property
    def size(self) -> str:
        """The shape that is wanted on a GPU, the tiny one in a dry run."""
        return self.wanted if self.on_cuda else "tiny"


def workload(place: Place, **real: Any) -> Any:
    """The ``Workload`` of these rows on a GPU, of few and short ones in a dry run."""
    import torch
    from trainerbench.workload import Workload

    dry = {"groups": 2, "group_size": 4, "prompt": 16, "median": 20, "shortest": 4}
    dry |= {"longest": 60, "rows_per_pass": 4, "checkpointing": False}
    return Workload(
        size=place.size,
        device=place.device,
        threads=torch.get_num_threads(),
        model=str(weights(place)),
        **(real if place.on_cuda else dry),
    )


def weights(place: Place) -> Path:
    """A directory with random bfloat16 weights of a shape, and a tokenizer of all its ids.

    The first ids are characters; the rest are words that no text contains.
    """
    import torch
    from trainerbench.workload import SIZES, model_config
    from transformers import AutoModelForCausalLM

    from atroposlib.testing.tiny import ALPHABET, ROLE_TOKENS, char_tokenizer

    directory = place.scratch / f"model-{place.size}"
    if (directory / "model.safetensors").exists():
        return directory
    vocabulary = SIZES[place.size].vocabulary
    words = [f"<{i}>" for i in range(vocabulary - len(ALPHABET) - len(ROLE_TOKENS))]
    alphabet: Any = [*ALPHABET, *words]
    tokenizer = char_tokenizer(alphabet)
    config = model_config(
        place.size,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(place.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    of_real_size(model)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def of_real_size(model: Any) -> None:
    """Scale random weights until logits, and what a residual stream adds up, are a trained model's.

    Logits of standard deviation s over V tokens have an entropy of about log V - s^2 / 2 nats.
    """
    import torch

    embedding = model.get_input_embeddings().weight
    vocabulary, hidden = embedding.shape
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter is not embedding:
                torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        spread = (2 * (math.log(vocabulary) - ENTROPY)) ** 0.5
        model.model.norm.weight.fill_(spread / (float(embedding.float().std()) * hidden**0.5))
