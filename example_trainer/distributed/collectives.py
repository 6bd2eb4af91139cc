"""What one rank does for all of them.

Only the first rank talks to other processes and writes files. What it gets, and what goes
wrong there, every rank must hear of: one that went on alone would wait for the others in
its next collective operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import torch

from atroposlib.errors import AtroposError
from example_trainer.state.stop import Stopped

if TYPE_CHECKING:
    from example_trainer.distributed.ranks import World

T = TypeVar("T")


def on_first(world: World, action: Callable[[], T]) -> T:
    """What ``action`` returned on the first rank, on every rank. JSON values only.

    Raises:
        AtroposError, Stopped: what it raised there; the other ranks name the first one.
    """
    if world.size == 1:
        return action()
    if world.first:
        return _share_outcome(world, action)
    heard = world.share(None)
    if heard["stopped"] is not None:
        raise Stopped(heard["stopped"])
    if heard["error"] is not None:
        raise AtroposError(f"rank 0 gave up: {heard['error']}")
    value: T = heard["value"]
    return value


def _share_outcome(world: World, action: Callable[[], T]) -> T:
    outcome: dict[str, Any] = {"value": None, "error": None, "stopped": None}
    try:
        value = action()
    except AtroposError as error:
        world.share({**outcome, "error": f"{type(error).__name__}: {error}"})
        raise
    except Stopped as stopped:
        world.share({**outcome, "stopped": str(stopped)})
        raise
    world.share({**outcome, "value": value})
    return value


def from_all(world: World, value: Any) -> list[Any]:
    """The JSON values of all ranks, in their order, on every rank."""
    if world.size == 1:
        return [value]
    own = msgspec.msgpack.encode(value)
    sizes = torch.zeros(world.size, dtype=torch.int64)
    sizes[world.rank] = len(own)
    longest = int(world.sum_(sizes).max())
    table = torch.zeros(world.size, longest, dtype=torch.int32)
    table[world.rank, : len(own)] = torch.tensor(list(own), dtype=torch.int32)
    rows = world.sum_(table).tolist()
    return [
        msgspec.msgpack.decode(bytes(row[:size])) for row, size in zip(rows, sizes.tolist())
    ]
