"""Export of a policy's weights, tensor by tensor, in the layout that engines load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from example_trainer.model.model_dir import tied_heads
from example_trainer.model.policy import Policy
from example_trainer.model.scoring import inner_model
from example_trainer.model.state_dict import iter_weights


@dataclass(frozen=True)
class TensorSpec:
    """Name, dtype and shape of one tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@torch.no_grad()
def export_weights(policy: Policy, *, untie_head: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield name and whole tensor in the compute dtype, adapter merged, on the device.

    Collective: every rank must consume all of them.

    Args:
        untie_head: a tied output head comes as a separate tensor, else not at all.
    """
    left_out = [] if untie_head else tied_heads(inner_model(policy.model))[1]
    for name, tensor in iter_weights(policy):
        if name in left_out:
            continue
        floating = tensor.is_floating_point()
        yield name, tensor.to(policy.compute_dtype) if floating else tensor


def layout(policy: Policy, *, untie_head: bool) -> list[TensorSpec]:
    """Return the specs that :func:`export_weights` yields, in its order. Collective."""
    return [
        TensorSpec(name, tensor.dtype, tuple(tensor.shape))
        for name, tensor in export_weights(policy, untie_head=untie_head)
    ]
