"""A step on long rows of Qwen3's shapes: the published runs of prime-rl, measured here.

prime-rl publishes ``benchmarks/baselines`` (January and February 2026): an H100 of 80 GB, fake
data, two micro-batches of a full row each, all activations recomputed, flash attention 3 and
torch.compile. Its MFU counts all keys of causal attention and a peak of 989 TFLOP/s; both are
printed by that formula here, so that the percentages compare. The second MFU is by
``useful_flops``: half the keys, over the peak that this device reaches.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import bench_trainer
import torch

from atroposlib.errors import ConfigError
from example_trainer.data.rows import Row
from gpuchecks.figures import Figure, Place
from gpuchecks.footprint import computed_gb
from gpuchecks.models import weights
from trainerbench.contestants import Ours
from trainerbench.workload import SIZES, Shape, Workload, rows_of, useful_flops

H100_PEAK = 989e12  # FLOP/s of bfloat16 that prime-rl divides by
ADAPTER_RANK = 16
MICRO_BATCHES = 2
LEFT_OUT = (torch.OutOfMemoryError, ConfigError)  # ConfigError: peft is not installed
SHORT, LONG = 16384, 65536  # tokens of a row
DRY = {SHORT: 48, LONG: 96}
# Percent of H100_PEAK that prime-rl published, by shape and tokens of a row.
PUBLISHED_MFU = {
    ("0.6b", SHORT): 11.1,
    ("0.6b", LONG): 26.8,
    ("4b", SHORT): 21.7,
    ("4b", LONG): 37.4,
}


class Published(NamedTuple):
    """Figures that prime-rl published of a shape."""

    mfu: float
    tokens_per_s: float

    @classmethod
    def of(cls, size: str, length: int, rank: int) -> Published:
        """The percentage, and the tokens/s that it stands for by prime-rl's formula."""
        mfu = PUBLISHED_MFU[size, length] / 100
        flops_per_token = prime_rl_flops(SIZES[size], [length], rank) / length
        return cls(mfu, mfu * H100_PEAK / flops_per_token)


def full(place: Place) -> list[Figure]:
    """Every weight is trained, 0.6B."""
    return measure_rows(place, 0)


def adapter(place: Place) -> list[Figure]:
    """A LoRA adapter of rank 16 on all linear layers, 4B."""
    return measure_rows(place, ADAPTER_RANK)


def measure_rows(place: Place, rank: int) -> list[Figure]:
    """The shorter rows first; rows that do not fit into memory are a line and end nothing."""
    lengths = {SHORT: SHORT, LONG: LONG} if place.on_cuda else DRY
    load = row_load(place, lengths[LONG], rank)
    try:
        contestant = Ours(load, "packed", share=False)
    except LEFT_OUT as problem:
        return [left_out(place.wanted, problem)]
    optimizer = contestant.optimizer()
    peak = bench_trainer.matrix_peak(contestant.device)
    figures: list[Figure] = []
    for published_length, length in lengths.items():
        published = Published.of(place.wanted, published_length, rank)
        rows = rows_of(row_load(place, length, rank))
        contestant.policy = replace(contestant.policy, max_tokens_per_microbatch=length)
        try:
            step = timed_step(contestant, optimizer, rows)
            figures += step_figures(load, rows, step, published, peak)
        except LEFT_OUT as problem:
            figures.append(left_out(f"{length:,} tokens", problem))
        optimizer.zero_grad(set_to_none=True)
        gc.collect()
        if place.on_cuda:
            torch.cuda.empty_cache()
    return figures


def row_load(place: Place, length: int, rank: int) -> Workload:
    """Two rows of exactly this length, every token but the first trained, a row a pass."""
    return Workload(
        size=place.size,
        groups=MICRO_BATCHES,
        group_size=1,
        prompt=1,
        median=length - 1,
        shortest=length - 1,
        longest=length - 1,
        rows_per_pass=1,
        device=place.device,
        threads=torch.get_num_threads(),
        checkpointing=True,
        model=str(weights(place)),
        lora=rank,
    )


class TimedStep(NamedTuple):
    seconds: float
    peak_gb: float
    padding: float  # share of the computed positions


def timed_step(
    contestant: Ours, optimizer: torch.optim.Optimizer, rows: list[Row]
) -> TimedStep:
    """The second of two steps: the first, on a row, creates kernels and optimizer state."""
    bench_trainer.take_steps(contestant, optimizer, rows[:1], 1)
    on_cuda = contestant.device.type == "cuda"
    memory = bench_trainer.CudaMemory() if on_cuda else bench_trainer.HostMemory()
    (step,) = bench_trainer.take_steps(contestant, optimizer, rows, 1)
    return TimedStep(step.seconds, memory.peak(), contestant.padding)


def step_figures(
    load: Workload, rows: list[Row], step: TimedStep, published: Published, peak: float
) -> list[Figure]:
    """Speed and memory of a step, each with what it compares with."""
    shape, lengths = SIZES[load.size], [len(row.tokens) for row in rows]
    what, rate = f"{max(lengths):,} tokens", sum(lengths) / step.seconds
    way = "lora" if load.lora else "adamw"
    their_mfu = prime_rl_flops(shape, lengths, load.lora) / step.seconds / H100_PEAK
    return [
        Figure(
            f"{what}: MFU by prime-rl's formula",
            f"{their_mfu:.1%}",
            f"prime-rl {published.mfu:.1%}",
        ),
        Figure(
            f"{what}: useful tokens/s",
            f"{rate:,.0f}",
            f"prime-rl {published.tokens_per_s:,.0f}",
        ),
        Figure(
            f"{what}: computed tokens/s, padding included",
            f"{rate / (1 - step.padding):,.0f}",
            f"{step.padding:.1%} padding",
        ),
        Figure(
            f"{what}: MFU of useful work",
            f"{useful_flops(rows, load) / step.seconds / peak:.1%}",
            f"of {peak / 1e12:.3g} TFLOP/s, measured",
        ),
        Figure(
            f"{what}: peak memory",
            f"{step.peak_gb:.1f} GB",
            f"computed {computed_gb(shape, way, max(lengths)):.1f} GB",
        ),
    ]


def prime_rl_flops(shape: Shape, lengths: Sequence[int], rank: int) -> float:
    """Work of a step as prime-rl counts it: every key, a hidden size of values per query.

    It gives the published 11,896 tokens/s for 11.08 % of the 0.6B shape at 16,384 tokens.
    """
    weights_used = shape.layers * shape.layer_matrices + shape.head
    per_token = (4 if rank else 6) * weights_used + 6 * shape.adapter(rank)
    per_pair = 12 * shape.layers * shape.hidden
    return float(sum(per_token * length + per_pair * length**2 for length in lengths))


def left_out(what: str, problem: Exception) -> Figure:
    why = f"{type(problem).__name__}: {problem}".split("\n")[0][:90]
    return Figure(f"{what}: left out", why)
