"""Scored groups of the shape of real runs, built before the measurement.

Token ids: a fifth below 256 (punctuation, bytes), the rest log-uniform up to 128,000,
which is near a Zipf law. The first quarter of a sequence is prompt: mask -100, logprob 1.0.
Logprobs are float32 values widened to double, 16 to 18 digits each in JSON, as an
inference engine returns them.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from atroposlib.wire import ScoredData

VOCABULARY = 128_000
PROMPT_SHARE = 0.25
JSON_TYPE = "application/json"
GROUP_TYPE = "application/x-safetensors"
FRAMES_TYPE = "application/x-atropos-groups"


class Encoding(str, Enum):
    JSON = "JSON"
    JSON_GZIP = "JSON, gzip 6"
    BINARY = "safetensors+zstd"


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a group: rows, and tokens of a row."""

    rows: int
    length: int

    @property
    def tokens(self) -> int:
        return self.rows * self.length

    def __str__(self) -> str:
        return f"{self.rows} x {self.length:,}"


@dataclass(frozen=True, slots=True)
class Body:
    """A request body with its headers."""

    data: bytes
    headers: dict[str, str]


def group(shape: Shape, env_id: int | None = None, seed: int = 0) -> dict[str, Any]:
    """A group as the dict that an environment's JSON body is made of."""
    rng = np.random.default_rng(seed)
    prompt = int(shape.length * PROMPT_SHARE)
    made: dict[str, Any] = {"tokens": [], "masks": [], "scores": [], "inference_logprobs": []}
    for _ in range(shape.rows):
        tokens = _token_row(rng, shape.length)
        masks = tokens.copy()
        masks[:prompt] = -100
        logprobs = _logprob_row(rng, shape.length)
        logprobs[:prompt] = 1.0
        made["tokens"].append(tokens.tolist())
        made["masks"].append(masks.tolist())
        made["scores"].append(float(rng.normal()))
        made["inference_logprobs"].append(logprobs.tolist())
    return made if env_id is None else made | {"env_id": env_id}


def _token_row(rng: np.random.Generator, length: int) -> np.ndarray:
    common = rng.integers(0, 256, length)
    rare = np.exp(rng.uniform(np.log(256), np.log(VOCABULARY), length)).astype(np.int64)
    return np.where(rng.random(length) < 0.2, common, rare)


def _logprob_row(rng: np.random.Generator, length: int) -> np.ndarray:
    sure = -np.power(10.0, rng.uniform(-7, -0.5, length))
    unsure = -rng.exponential(1.5, length)
    chosen = np.where(rng.random(length) < 0.65, sure, unsure)
    return chosen.astype(np.float32).astype(np.float64)


def body(made: dict[str, Any] | list[dict[str, Any]], encoding: Encoding) -> Body:
    """The request body of a group, or in JSON of a list of groups."""
    if encoding is Encoding.BINARY:
        assert isinstance(made, dict)
        return Body(
            compressed_arrays(made), {"content-type": GROUP_TYPE, "content-encoding": "zstd"}
        )
    text = json.dumps(made).encode()
    if encoding is Encoding.JSON_GZIP:
        headers = {"content-type": JSON_TYPE, "content-encoding": "gzip"}
        return Body(gzip.compress(text, 6), headers)
    return Body(text, {"content-type": JSON_TYPE})


def compressed_arrays(made: dict[str, Any]) -> bytes:
    """A group as a safetensors file in a zstd frame."""
    from atroposlib.wire.binary import pack_group

    return pack_group(ScoredData(**made), compress=True)


def frame_groups(made: dict[str, Any]) -> bytes:
    """A group as the body of POST /groups."""
    from atroposlib.wire.binary import concatenate_frames

    return concatenate_frames([compressed_arrays(made)])


def pool(count: int, shape: Shape, encoding: Encoding) -> list[Body]:
    """Different bodies, to be sent in turn: equal bodies would share caches and digests."""
    return [body(group(shape, 0, 1000 + i), encoding) for i in range(count)]
