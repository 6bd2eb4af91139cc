"""FSDP2: weights, gradients and optimizer state of a model, sharded over the ranks.

FSDP2 gathers each layer's weights for its forward and for its backward and sums the
gradients of all ranks into the shard of each rank. ``state_dict`` gathers whole weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

import torch

from atroposlib.errors import ConfigError
from atroposlib.utils.models.causal_lm import decoder
from example_trainer.distributed import collectives
from example_trainer.distributed.ranks import Ranks
from example_trainer.model.scoring import Backbone, decoder_layers
from example_trainer.settings.model import ModelSettings

PARTIAL = "replicated_with_grad_allreduce"  # norms of single heads


def shard_model(module: Backbone, settings: ModelSettings, world: Ranks) -> None:
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
    if world.tensor == 1:
        mesh = init_device_mesh(world.device.type, (world.size,))
    else:
        grid, names = (world.size, world.tensor), ("data", "tensor")
        both = init_device_mesh(world.device.type, grid, mesh_dim_names=names)
        _split_matrices(module, settings, world, both["tensor"])
        mesh = both["data"]
    options: Mapping[str, Any] = {
        "mesh": mesh,
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


def _split_matrices(
    module: Backbone, settings: ModelSettings, world: Ranks, mesh: Any
) -> None:
    """Tensor parallelism by the plan of the model's configuration; ConfigError without it."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    styles = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    model: Any = module.model
    base, config = decoder(model), model.config.get_text_config()
    plan = getattr(config, "base_model_tp_plan", None) or {}
    kinds = "num_attention_heads", "num_key_value_heads"
    why, heads = "", [getattr(config, kind, None) or 1 for kind in kinds]
    if settings.trains_adapter:
        why = "an adapter is trained"
    elif not plan or (foreign := set(plan.values()) - {*styles, PARTIAL}):
        why = (
            f"the plan of its configuration has {sorted(foreign)}"
            if plan
            else "it has no plan"
        )
    elif any(count % world.tensor for count in heads):
        why = f"its {heads[0]} query and {heads[1]} key heads are not divisible"
    if why:
        raise ConfigError(
            f"{type(module.model).__name__} cannot be trained with tensor_parallel"
            f" {world.tensor}: {why}; leave it at 1, FSDP shards the model over all ranks"
        )
    parallelize_module(base, mesh, {k: styles[v]() for k, v in plan.items() if v in styles})
    grid = world.size * world.tensor
    for name, parameter in module.named_parameters():
        owner = name.rpartition(".")[0]
        if any(fnmatch(owner, f"*.{path}") for path, v in plan.items() if v == PARTIAL):
            module.partial.add(name)
        if collectives.split_over(parameter, "tensor") and parameter.shape[0] % grid:
            raise ConfigError(
                f"tensor_parallel: {name} has {len(parameter)} rows for {grid} ranks"
            )


def _sum_gradients(module: Any) -> None:
    """Sum instead of FSDP's mean over ranks: the caller divides the loss once."""
    if hasattr(module, "set_gradient_divide_factor"):
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    else:  # its name before torch 2.8
        module.set_reduce_scatter_divide_factor(1.0)
