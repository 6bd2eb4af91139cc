"""Sizes of the scenarios, in plans for every day, for all figures, and for a mere run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from apibench.payloads import Shape

BIG = Shape(16, 4096)  # the group most figures are about
SMALL = Shape(8, 512)


@dataclass(frozen=True)
class Plan:
    """Sizes and repeats. The naive server is slow, so it gets fewer long scenarios."""

    name: str = "plain"
    repeats: int = 2
    shapes: tuple[Shape, ...] = (BIG,)  # posted groups
    post_tokens: int = 2_000_000  # per measurement
    batch_groups: int = 16  # groups of the batch that GET /batch is timed with
    naive_batch_repeats: int = 1
    blocking_groups: int = 64  # groups of the batch during which /status is asked
    large_post_groups: int = 40  # groups of a post, 80 MB of JSON
    naive_blocking: bool = False
    sustained_batches: int = 4
    naive_sustained_batches: int = 2
    queue_lengths: tuple[int, ...] = (100, 1_000)
    buffer_lengths: tuple[int, ...] = (100, 1_000)
    memory_groups: int = 128
    backlog_gb: float = 0.5  # posts queued at once
    pictures_gb: float = 1.0  # base64 of the pictures of a step, of all rows
    posters: tuple[int, ...] = (64, 1000, 4000)
    post_seconds: float = 12.0
    scale_stores: tuple[str, ...] = ("sqlite",)
    scratch: Path | None = None
    source: Path | None = None


PLAIN = Plan()

FULL = Plan(
    name="full",
    repeats=4,
    shapes=(BIG, SMALL),
    post_tokens=3_000_000,
    naive_batch_repeats=3,
    naive_blocking=True,
    sustained_batches=8,
    queue_lengths=(100, 1_000, 10_000),
    buffer_lengths=(100, 1_000, 3_000),
    memory_groups=256,
    backlog_gb=5.0,
    pictures_gb=25.0,
    scale_stores=("sqlite", "2 replicas, PostgreSQL"),
)

# Takes seconds: shows that every scenario runs; its figures mean nothing.
SMOKE = Plan(
    name="smoke",
    repeats=1,
    shapes=(Shape(4, 64),),
    post_tokens=2_000,
    batch_groups=2,
    blocking_groups=2,
    large_post_groups=2,
    naive_blocking=True,
    sustained_batches=2,
    naive_sustained_batches=1,
    queue_lengths=(50, 100),
    buffer_lengths=(10, 20),
    memory_groups=8,
    backlog_gb=0.02,
    pictures_gb=0.5,
    posters=(16,),
    scale_stores=("sqlite", "2 replicas, PostgreSQL"),
    post_seconds=1.0,
)
