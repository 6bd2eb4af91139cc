"""FSDP2: weights, gradients and optimizer state of a model, sharded over the ranks.

FSDP2 gathers each layer's weights when its forward or backward needs them and sums the
gradients of all ranks into the shard each one keeps. ``state_dict`` gathers whole weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from example_trainer.distributed.ranks import Ranks
from example_trainer.model.scoring import Backbone, decoder_layers
from example_trainer.settings.model import ModelSettings


def shard(module: Backbone, settings: ModelSettings, world: Ranks) -> None:
    """Split weights, gradients and optimizer state over the ranks (FSDP2), in place.

    Call it before :func:`example_trainer.update.optimizer.build_optimizer`. Afterwards every
    forward pass must go through ``module``, on all ranks equally often, and after the
    backward pass a gradient is the sum over the ranks. Weights on the meta device stay there.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )

    low = None if module.compute_dtype is torch.float32 else module.compute_dtype
    options: Mapping[str, Any] = {
        "mesh": init_device_mesh(world.device.type, (world.size,)),
        # Inputs keep their precision: a temperature of 0.7 is not a bfloat16.
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=low, reduce_dtype=torch.float32, cast_forward_inputs=False
        ),
        "offload_policy": (
            CPUOffloadPolicy(pin_memory=world.device.type == "cuda")
            if settings.cpu_offload
            else OffloadPolicy()
        ),
        # The root as well, so that between micro-batches parameters() are always the shards.
        "reshard_after_forward": True,
    }
    for part in (*decoder_layers(module.model), module):
        _sum_gradients(fully_shard(part, **options))


def _sum_gradients(module: Any) -> None:
    """Sum instead of FSDP's mean over ranks: the caller divides the loss once."""
    if hasattr(module, "set_gradient_divide_factor"):
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    else:  # its name before torch 2.8
        module.set_reduce_scatter_divide_factor(1.0)
