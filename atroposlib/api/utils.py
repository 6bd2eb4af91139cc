"""The original's three queue functions, implemented with ``decisions.exact_fill``.

Queue items are groups in the form of the wire: dicts with ``tokens`` and, at times, ``env_id``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.api.decisions.exact_fill import first_exact, minimum_sequences

Item = dict[str, Any]


def find_groups_summing_to_target(buffer: Sequence[Item], target_size: int) -> list[int]:
    """Ascending indices of groups whose sizes add up to ``target_size``; earlier groups first.

    Returns an empty list if no subset adds up.
    Example: sizes 4, 3, 2, 2 with target_size 5 -> [1, 2].
    """
    return first_exact([(None, len(group["tokens"])) for group in buffer], target_size) or []


def grab_exact_from_heterogeneous_queue(
    queue: Sequence[Item], batch_size: int
) -> tuple[list[Item] | None, list[Item]]:
    """Take groups with exactly ``batch_size`` sequences: (batch or None, the other groups)."""
    return _grab(queue, batch_size, {})


def grab_batch_with_minimum_allocations(
    queue: Sequence[Item], batch_size: int, env_configs: Sequence[Mapping[str, Any]]
) -> tuple[list[Item] | None, list[Item]]:
    """Take an exact batch that keeps ``min_batch_allocation`` of every connected env.

    An env config without ``registered_id`` stands for the env at its place in the list.
    """
    minima = {
        int(config.get("registered_id", place)): float(config["min_batch_allocation"])
        for place, config in enumerate(env_configs)
        if config.get("connected") and config.get("min_batch_allocation") is not None
    }
    return _grab(queue, batch_size, minimum_sequences(minima, batch_size))


def _grab(
    queue: Sequence[Item], batch_size: int, needs: Mapping[int, int]
) -> tuple[list[Item] | None, list[Item]]:
    keys = [(group.get("env_id"), len(group["tokens"])) for group in queue]
    chosen = set(first_exact(keys, batch_size, needs) or ())
    if not chosen:
        return None, list(queue)
    batch = [group for place, group in enumerate(queue) if place in chosen]
    return batch, [group for place, group in enumerate(queue) if place not in chosen]
