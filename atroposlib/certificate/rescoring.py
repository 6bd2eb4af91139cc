"""Rescoring: logprobs of rows by stored weights, compared with those of their sampler.

T tokens of a row, V size of the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atroposlib.certificate.claims import NEUTRAL, SealedRow
from atroposlib.errors import ConfigError
from atroposlib.wire.safetensors import Array

if TYPE_CHECKING:
    from torch import Tensor

STATE_FILE = "trainer_state.json"  # beside a model that the trainer saved
ROUNDING_NATS = 0.1  # mean distance per token below which bfloat16 may be the cause
HEAD_POSITIONS = 256  # positions with logits in memory at a time


@dataclass(frozen=True)
class WeightsCheck:
    """Distance of a row's logprobs from those of the weights, in nats per token."""

    row: SealedRow
    mean: float
    most: float
    tokens: int


def saved_version(model: Path) -> int:
    """The policy version of a model directory.

    Raises:
        ConfigError: its trainer wrote none there.
    """
    try:
        return int(json.loads((model / STATE_FILE).read_text())["version"])
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise ConfigError(
            f"{model} names no version ({STATE_FILE}): add --weights-version with that of its weights"
        ) from cause


def comparable_rows(rows: Iterable[SealedRow], version: int) -> Iterator[SealedRow]:
    """Rows that ``version`` alone sampled, from its whole distribution."""
    for row in rows:
        if row.versions is None or row.logprobs is None or not row.spans:
            continue
        whole = all(
            span.get(name, neutral) == neutral
            for span in row.spans
            for name, neutral in NEUTRAL.items()
        )
        is_sampled = row.trained.any() and (row.versions[row.trained] == version).all()
        if is_sampled and whole and not any(span.get("constraints") for span in row.spans):
            yield row


def rescore_rows(model: Path, rows: Sequence[SealedRow]) -> list[WeightsCheck]:
    """Compare the trained tokens of the rows with the model in ``model``, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    if not (model / "config.json").is_file():
        raise ConfigError(f"{model} is no directory of a model: it has no config.json")
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    loaded.eval()
    return [_distance_of(row, _logprobs(loaded, row)) for row in rows]


def _logprobs(model: Any, row: SealedRow) -> Array:
    """(T,) logprobs at the temperatures of the row; 0 for the first token, which has none."""
    import torch

    ids = torch.from_numpy(row.tokens.astype(np.int64))[None]
    divisors = torch.from_numpy(_temperatures(row))
    scored = torch.zeros(ids.shape[1])
    with torch.inference_mode():
        hidden: Tensor = model.base_model(ids).last_hidden_state[0]  # (T, D)
        for start in range(0, ids.shape[1] - 1, HEAD_POSITIONS):
            end = min(start + HEAD_POSITIONS, ids.shape[1] - 1)
            logits = model.get_output_embeddings()(hidden[start:end])  # (positions, V)
            logprobs = (logits / divisors[start + 1 : end + 1, None]).log_softmax(-1)
            targets = ids[0, start + 1 : end + 1, None]
            scored[start + 1 : end + 1] = logprobs.gather(1, targets)[:, 0]
    return scored.numpy()


def _temperatures(row: SealedRow) -> Array:
    """(T,) float32 divisors; greedy tokens have logprobs of temperature 1."""
    divisors = np.ones(len(row.tokens), np.float32)
    for span in row.spans:
        divisors[span["start"] : span["end"]] = span["temperature"] or 1.0
    return divisors


def _distance_of(row: SealedRow, scored: Array) -> WeightsCheck:
    assert row.logprobs is not None
    places = row.trained.copy()
    places[0] = False  # no weights predict the first token
    distance = np.abs(scored[places] - row.logprobs[places])
    mean, most = (
        (float(distance.mean()), float(distance.max())) if len(distance) else (0.0, 0.0)
    )
    return WeightsCheck(row, mean, most, len(distance))
