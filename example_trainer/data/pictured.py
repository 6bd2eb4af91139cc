"""Forward passes of rows with pictures: a padded line per row, and no shared prefixes.

Pixel tensors of the rows of a pass are joined, so a pass has rows whose tensors have equal shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from example_trainer.data.packing import MicroBatch, Pack, plan_microbatches
from example_trainer.data.rows import Row


def plan_pictured(
    packs: Sequence[Pack],
    rows: Sequence[Row],
    max_tokens: int,
    *,
    divisor: int = 1,
    switch: float = float("inf"),
) -> list[MicroBatch]:
    """Passes over packs of a row each, as :func:`packing.plan_microbatches`.

    The passes of neighbouring ranks use the same weights, as the sum over ranks requires: a rank
    without rows computes the pictures of another.
    """
    by_shape: dict[object, list[Pack]] = {}
    for pack in packs:
        pictures = rows[pack.rows[0]].pictures
        by_shape.setdefault(pictures and pictures.batch_key, []).append(pack)
    planned: list[MicroBatch] = []
    for alike in by_shape.values():
        passes = plan_microbatches(
            alike, rows, max_tokens, divisor=divisor, padded=True, switch=switch
        )
        filler = _without_tokens(min(passes, key=_computed))
        planned += [batch if batch.packs else filler for batch in passes]
    return planned


def _computed(batch: MicroBatch) -> float:
    return batch.computed if batch.packs else float("inf")


def _without_tokens(batch: MicroBatch) -> MicroBatch:
    """A copy of the pass without a token to be scored."""
    none = np.zeros(0, np.int64)
    return replace(
        batch,
        nodes=none,
        temperatures=np.zeros(0),
        head_index=none,
        targets=none,
        rows=none,
        columns=none,
        row_ids=[],
        teacher_ids=[],
    )
