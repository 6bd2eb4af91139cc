"""Losses by name. A loss is one function in one file and one line here.

A loss takes (B, T) tensors and returns ``(loss_sum, metrics)``. It returns sums, never
means: the loop divides by the count of the whole batch, so the gradient does not depend on
how rows were split into forward passes. Metrics are sums over trained tokens as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from atroposlib.errors import ConfigError
from example_trainer.losses import grpo

if TYPE_CHECKING:
    from torch import Tensor

    Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]

LOSSES: dict[str, Loss] = {
    "grpo": grpo.loss,
}


def get(name: str) -> Loss:
    """The loss of that name.

    Raises:
        ConfigError: there is none; lists those there are.
    """
    if name not in LOSSES:
        raise ConfigError(f"loss {name!r} is unknown; there are: {', '.join(sorted(LOSSES))}")
    return LOSSES[name]
