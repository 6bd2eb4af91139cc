"""Logprobs and gradients, computed in every way, against padded rows in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from example_trainer.data.rows import Row
from example_trainer.model import attention
from gpuchecks.figures import Figure, Place, below, holds
from gpuchecks.models import Reference, workload
from trainerbench.contestants import Ours
from trainerbench.workload import Workload, rows_of

# Float32 differs by the order of sums; bfloat16 has 8 bits. Nats, and relative L2 norms.
EXACT = {"logprob, largest": 3e-4, "gradient": 2e-3}
ROUNDED = {"gradient": 0.1}
# Limit of the gradient error of a packed pass over that of a padded pass, both in bfloat16.
MORE_THAN_PADDED = 1.5
# Rounding of logprobs over that of the reference in bfloat16: 1 where only products round.
MORE_THAN_REFERENCE = 1.4
HEAD_DIM = 64


def no_kernel(*_: Any) -> None:
    """Replacement of attention.varlen_kernel where no kernel may be used."""


@dataclass
class Found:
    """Logprobs of all trained tokens (N,), and the gradient of the mean loss by name."""

    logprobs: Tensor
    gradient: dict[str, Tensor]


def arithmetic(place: Place) -> list[Figure]:
    sizes = {"groups": 4, "group_size": 8, "prompt": 128, "median": 200, "shortest": 16}
    load = workload(place, **sizes, longest=800, rows_per_pass=8, checkpointing=False)
    plain = Reference(Path(load.model), load.device)
    rows = plain.with_likely_labels(rows_of(load))
    reference = arithmetic_of(load, rows, "padded", False, "float32")
    exact = plain.of_labels(rows, torch.float32)
    largest = float((exact - reference.logprobs).abs().max())
    rounding = float((plain.of_labels(rows, torch.bfloat16) - exact).abs().mean())
    figures, of_padded = [], 0.0
    figures.append(
        below("padded, float32: logprob, largest", largest, EXACT["logprob, largest"])
    )
    figures.append(Figure("reference, bfloat16: logprob, mean", f"{rounding:.3g}"))
    for name, packing, share, dtype, kernel in ways(place):
        with nullcontext() if kernel else patch.object(attention, "varlen_kernel", no_kernel):
            apart = distance(arithmetic_of(load, rows, packing, share, dtype), reference)
        limits = EXACT if dtype == "float32" else ROUNDED
        figures += [below(f"{name}: {what}", apart[what], limits[what]) for what in limits]
        if dtype == "bfloat16":
            what = f"{name}: logprob error over that of the reference"
            error = apart["logprob, mean"] / rounding
            figures.append(below(what, error, MORE_THAN_REFERENCE))
        if packing == "padded":
            of_padded = apart["gradient"]
        elif dtype == "bfloat16":
            what = f"{name}: gradient error over that of padded"
            figures.append(below(what, apart["gradient"] / of_padded, MORE_THAN_PADDED))
    if place.on_cuda:
        varlen = attention.varlen_kernel(torch.device("cuda"), torch.bfloat16, HEAD_DIM)
        name = "none" if varlen is None else varlen.__qualname__.split(".")[0]
        figures.append(holds("variable-length kernel", name, "one works", varlen is not None))
    return figures


def ways(place: Place) -> Iterator[tuple[str, str, bool, str, bool]]:
    """Name, packing, shared prefixes, dtype, and whether a kernel may be used; padded first."""
    yield "packed, float32", "packed", False, "float32", True
    yield "shared prefixes, float32", "packed", True, "float32", True
    yield "padded, bfloat16", "padded", False, "bfloat16", True
    yield "packed by spans, bfloat16", "packed", False, "bfloat16", False
    yield "shared prefixes by masks, bfloat16", "packed", True, "bfloat16", False
    if place.on_cuda:
        yield "packed, varlen, bfloat16", "packed", False, "bfloat16", True
        name = "shared prefixes, varlen and masks, bfloat16"
        yield name, "packed", True, "bfloat16", True


def arithmetic_of(
    load: Workload, rows: list[Row], packing: str, share: bool, dtype: str
) -> Found:
    contestant = Ours(load, packing, share, dtype)
    with torch.no_grad():
        logprobs_R_T = contestant.policy.trained_logprobs(rows)
    contestant.backward(rows)
    gradient = {n: p.grad.cpu() for n, p in contestant.model.named_parameters()}
    return Found(torch.tensor([p for row in logprobs_R_T for p in row]), gradient)


def distance(found: Found, reference: Found) -> dict[str, float]:
    apart = (found.logprobs - reference.logprobs).abs()
    square = sum(
        float((found.gradient[n] - g).double().square().sum())
        for n, g in reference.gradient.items()
    )
    whole = sum(float(g.double().square().sum()) for g in reference.gradient.values())
    return {
        "logprob, mean": float(apart.mean()),
        "logprob, largest": float(apart.max()),
        "gradient": (square / whole) ** 0.5,
    }
