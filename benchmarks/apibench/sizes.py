"""How large each scenario is: one plan for every day, one that gives all figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from apibench.payloads import Shape

BIG = Shape(16, 4096)  # the group most figures are about
SMALL = Shape(8, 512)


@dataclass(frozen=True)
class Plan:
    """Sizes and repeats. The naive server is slow, so it gets fewer of the long ones."""

    name: str
    repeats: int
    shapes: tuple[Shape, ...]  # of posted groups
    post_tokens: int  # per measurement
    batch_groups: int  # groups of the batch that GET /batch is timed with
    naive_batch_repeats: int
    naive_gzip_repeats: int
    blocking_groups: int  # groups of the batch during which /status is asked
    naive_blocking: bool
    sustained_batches: int
    naive_sustained_batches: int
    queue_lengths: tuple[int, ...]
    buffer_lengths: tuple[int, ...]
    memory_groups: int
    environments: int
    env_seconds: dict[str, float]  # by how the environments pace themselves
    naive_env_seconds: float
    loop_seconds: float
    loop_repeats: int
    scratch: Path | None = None
    source: Path | None = None


PLAIN = Plan(
    name="plain",
    repeats=2,
    shapes=(BIG,),
    post_tokens=2_000_000,
    batch_groups=16,
    naive_batch_repeats=1,
    naive_gzip_repeats=1,
    blocking_groups=64,
    naive_blocking=False,
    sustained_batches=4,
    naive_sustained_batches=2,
    queue_lengths=(100, 1_000),
    buffer_lengths=(100, 1_000),
    memory_groups=128,
    environments=256,
    env_seconds={"backlogged": 10.0},
    naive_env_seconds=0.0,
    loop_seconds=4.0,
    loop_repeats=1,
)

FULL = Plan(
    name="full",
    repeats=4,
    shapes=(BIG, SMALL),
    post_tokens=3_000_000,
    batch_groups=16,
    naive_batch_repeats=3,
    naive_gzip_repeats=1,
    blocking_groups=64,
    naive_blocking=True,
    sustained_batches=8,
    naive_sustained_batches=2,
    queue_lengths=(100, 1_000, 10_000),
    buffer_lengths=(100, 1_000, 3_000),
    memory_groups=256,
    environments=256,
    env_seconds={"backlogged": 60.0, "scaled": 15.0, "greedy": 15.0},
    naive_env_seconds=15.0,
    loop_seconds=8.0,
    loop_repeats=2,
)

# Seconds in all: whether every scenario still runs, not what it finds.
SMOKE = Plan(
    name="smoke",
    repeats=1,
    shapes=(Shape(4, 64),),
    post_tokens=2_000,
    batch_groups=2,
    naive_batch_repeats=1,
    naive_gzip_repeats=1,
    blocking_groups=2,
    naive_blocking=True,
    sustained_batches=2,
    naive_sustained_batches=1,
    queue_lengths=(50, 100),
    buffer_lengths=(10, 20),
    memory_groups=8,
    environments=8,
    env_seconds={"backlogged": 1.0, "scaled": 1.0, "greedy": 1.0},
    naive_env_seconds=1.0,
    loop_seconds=1.0,
    loop_repeats=1,
)
