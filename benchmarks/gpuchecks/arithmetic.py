"""Logprobs and gradients of every way to compute them, against padded rows in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from trainerbench.contestants import Ours
from trainerbench.workload import Workload, rows_of

from example_trainer.data.rows import Row
from example_trainer.model import attention
from gpuchecks.figures import Figure, Place, below, holds, workload

# Float32 differs by the order of sums; bfloat16 has 8 bits. Nats, and relative L2 norms.
EXACT = {"logprob, largest": 3e-4, "gradient": 2e-3}
ROUNDED = {"logprob, mean": 0.1, "gradient": 0.1}
# A packed pass in bfloat16 against a padded one in bfloat16: not more rounding than that.
MORE_THAN_PADDED = 1.5
# Of transformers' own pass in bfloat16, whose residual stream and logits are rounded; ours are
# float32. The tiny shape has 0.82, and with rounded logits or a rounded residual stream 0.94;
# SmolLM2, which is deeper, 0.4.
LESS_THAN_PLAIN = 0.88
HEAD_DIM = 64


def no_kernel(*_: Any) -> None:
    """Stand for attention.varlen_kernel where none may be used."""


@dataclass
class Found:
    """Logprobs of all trained tokens (N,), and the gradient of the mean loss by name."""

    logprobs: Tensor
    gradient: dict[str, Tensor]


def arithmetic(place: Place) -> list[Figure]:
    sizes = {"groups": 4, "group_size": 8, "prompt": 128, "median": 200, "shortest": 16}
    load = workload(place, **sizes, longest=800, rows_per_pass=8, checkpointing=False)
    rows = likely_rows(load)
    reference = computed(load, rows, "padded", False, "float32")
    plain = float((plain_logprobs(load, rows) - reference.logprobs).abs().mean())
    figures, of_padded = [], 0.0
    figures.append(Figure("plain transformers, bfloat16: logprob, mean", f"{plain:.3g}"))
    for name, packing, share, dtype, kernel in ways(place):
        with nullcontext() if kernel else patch.object(attention, "varlen_kernel", no_kernel):
            apart = distance(computed(load, rows, packing, share, dtype), reference)
        limits = EXACT if dtype == "float32" else ROUNDED
        figures += [below(f"{name}: {what}", apart[what], limits[what]) for what in limits]
        if dtype == "bfloat16":
            what = f"{name}: logprob error over that of plain transformers"
            figures.append(below(what, apart["logprob, mean"] / plain, LESS_THAN_PLAIN))
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


def computed(load: Workload, rows: list[Row], packing: str, share: bool, dtype: str) -> Found:
    contestant = Ours(load, packing, share, dtype)
    with torch.no_grad():
        logprobs_R_T = contestant.policy.trained_logprobs(rows)
    contestant.backward(rows)
    gradient = {n: p.grad.cpu() for n, p in contestant.model.named_parameters()}
    return Found(torch.tensor([p for row in logprobs_R_T for p in row]), gradient)


def likely_rows(load: Workload) -> list[Row]:
    """Rows whose scored tokens the model itself would write: likely ones have large logits."""
    generator, rows = torch.Generator(load.device).manual_seed(0), []
    for row, logprobs in plain_pass(load, rows_of(load), torch.float32):
        drawn = torch.multinomial(logprobs.exp(), 1, generator=generator)[:, 0]
        labels = list(row.labels)
        for j, token in zip(row.trained, drawn.tolist()):
            labels[j] = token
        rows.append(replace(row, labels=labels))
    return rows


def plain_logprobs(load: Workload, rows: list[Row]) -> Tensor:
    """(N,) of transformers' own forward pass of each row, all in bfloat16 but the softmax."""
    parts = []
    for row, logprobs in plain_pass(load, rows, torch.bfloat16):
        labels = torch.tensor([row.labels[j] for j in row.trained], device=logprobs.device)
        parts.append(logprobs.gather(-1, labels[:, None])[:, 0].cpu())
    return torch.cat(parts)


@torch.no_grad()
def plain_pass(
    load: Workload, rows: list[Row], dtype: torch.dtype
) -> Iterator[tuple[Row, Tensor]]:
    """Each row with float32 logprobs (trained tokens, V) of a pass in ``dtype``."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(load.model, dtype=dtype).to(load.device)
    for row in rows:
        tokens = torch.tensor([row.tokens], device=load.device)
        at = torch.tensor(row.trained, device=load.device)
        yield row, model(tokens).logits[0, at].float().log_softmax(-1)


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
