"""Logprobs and gradients of every way to compute them, against padded rows in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

import torch
from gpuchecks.figures import Figure, Place, below, holds, weights
from torch import Tensor
from trainerbench.contestants import Ours
from trainerbench.workload import Workload, rows_of

from example_trainer.data.rows import Row
from example_trainer.model import attention

# Float32 differs by the order of sums; bfloat16 has 8 bits. Nats, and relative L2 norms.
EXACT = {"logprob, largest": 3e-4, "gradient": 2e-3}
ROUNDED = {"logprob, mean": 0.02, "logprob, largest": 0.2, "gradient": 0.1}
# A packed pass in bfloat16 against a padded one in bfloat16: not more rounding than that.
MORE_THAN_PADDED = 1.5


@dataclass
class Found:
    """Logprobs of all trained tokens (N,), and the gradient of the mean loss by name."""

    logprobs: Tensor
    gradient: dict[str, Tensor]


def arithmetic(place: Place) -> list[Figure]:
    load = rows_to_compare(place)
    reference = computed(load, "padded", False, "float32")
    figures = compared(
        "packed, float32", computed(load, "packed", False, "float32"), reference, EXACT
    )
    shared = computed(load, "packed", True, "float32")
    figures += compared("shared prefixes, float32", shared, reference, EXACT)
    padded = computed(load, "padded", False, "bfloat16")
    figures += compared("padded, bfloat16", padded, reference, ROUNDED)
    variants = {
        "packed by spans, bfloat16": lambda: without_kernel(load, False),
        "shared prefixes by masks, bfloat16": lambda: without_kernel(load, True),
    }
    if place.on_cuda:
        head_dim = 64
        kernel = attention.varlen_kernel(torch.device("cuda"), torch.bfloat16, head_dim)
        name = "none" if kernel is None else kernel.__qualname__.split(".")[0]
        figures.append(holds("variable-length kernel", name, "one works", kernel is not None))
        both: dict[str, Callable[[], Found]] = {
            "packed, varlen, bfloat16": lambda: computed(load, "packed", False, "bfloat16"),
            "shared prefixes, varlen and masks, bfloat16": lambda: computed(
                load, "packed", True, "bfloat16"
            ),
        }
        variants |= both
    worst = distance(padded, reference)["gradient"]
    for name, compute in variants.items():
        found = compute()
        figures += compared(name, found, reference, ROUNDED)
        more = distance(found, reference)["gradient"] / worst
        figures.append(
            below(f"{name}: gradient error over that of padded", more, MORE_THAN_PADDED)
        )
    return figures


def rows_to_compare(place: Place) -> Workload:
    size = place.size("135m")
    wide = place.on_cuda
    return Workload(
        size=size,
        groups=4,
        group_size=8 if wide else 4,
        prompt=128 if wide else 16,
        median=200 if wide else 20,
        shortest=16 if wide else 4,
        longest=800 if wide else 60,
        rows_per_pass=8,
        device=place.device,
        threads=torch.get_num_threads(),
        checkpointing=False,
        model=str(weights(place, size)),
    )


def computed(load: Workload, packing: str, share: bool, dtype: str) -> Found:
    contestant = Ours(load, packing, share, dtype)
    rows: list[Row] = rows_of(load)
    with torch.no_grad():
        logprobs_R_T = contestant.policy.trained_logprobs(rows)
    contestant.backward(rows)
    gradient = {n: p.grad.cpu() for n, p in contestant.model.named_parameters()}
    return Found(torch.tensor([p for row in logprobs_R_T for p in row]), gradient)


def without_kernel(load: Workload, share: bool) -> Found:
    with patch.object(attention, "varlen_kernel", lambda *_: None):
        return computed(load, "packed", share, "bfloat16")


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


def compared(
    name: str, found: Found, reference: Found, limits: dict[str, float]
) -> list[Figure]:
    apart = distance(found, reference)
    return [below(f"{name}: {what}", apart[what], limit) for what, limit in limits.items()]
