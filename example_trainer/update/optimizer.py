"""The optimizer, its learning rate, a clipped step, and its state as named tensors."""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from atroposlib.errors import ConfigError
from example_trainer.distributed import collectives
from example_trainer.distributed.collectives import Sliceable
from example_trainer.model.policy import PackedModel
from example_trainer.settings.optim import OptimSettings
from example_trainer.update.offloaded import OffloadedAdamW

logger = logging.getLogger(__name__)


def build_optimizer(model: PackedModel, settings: OptimSettings) -> torch.optim.Optimizer:
    """Build the optimizer of the settings; prints a line if adamw has to replace adamw_8bit.

    Call it after :func:`example_trainer.model.fsdp.shard_model`: it holds the parameters as they
    are now, and its state lies where they lie (in main memory with ``cpu_offload``).
    """
    parameters = model.parameters()
    if settings.optimizer == "adafactor":
        # Lazy: transformers takes seconds to import.
        from example_trainer.update.adafactor import UnshardedAdafactor

        adafactor: Any = UnshardedAdafactor
        optimizer: torch.optim.Optimizer = adafactor(
            parameters,
            lr=None if settings.adafactor_relative_step else settings.lr,
            scale_parameter=settings.adafactor_scale_parameter,
            relative_step=settings.adafactor_relative_step,
            weight_decay=settings.weight_decay,
        )
        return optimizer
    if settings.optimizer == "sgd":
        # Without momentum its decay is decoupled: w -= lr (g + decay w).
        return torch.optim.SGD(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
    betas = (settings.adam_beta1, settings.adam_beta2)
    shared: dict[str, Any] = {"lr": settings.lr, "betas": betas, "eps": settings.adam_eps}
    shared["weight_decay"] = settings.weight_decay
    if settings.optimizer == "adamw_8bit":
        # Its blocks of 256 values would straddle shards, and shards save more than it does.
        whole = not any(isinstance(parameter, DTensor) for parameter in parameters)
        on_cuda = model.device.type == "cuda"
        if importlib.util.find_spec("bitsandbytes") and on_cuda and whole:
            import bitsandbytes  # type: ignore[import-not-found, unused-ignore]

            eight_bit: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(
                parameters, **shared
            )
            return eight_bit
        if model.world.is_rank0:
            logger.warning(
                "optimizer adamw_8bit needs bitsandbytes and one CUDA device: using adamw"
            )
    if settings.optimizer_offload:
        return OffloadedAdamW(parameters, **shared)
    return torch.optim.AdamW(parameters, fused=True, **shared)


def learning_rate(settings: OptimSettings, step: int, total_steps: int) -> float:
    """Rate of optimizer step ``step``, counted from 0.

    Linear warm-up over ``warmup_steps`` or ``warmup_ratio`` of all steps, by the longer. Then
    constant, or from ``lr`` to ``lr x min_lr_ratio``, linear or along a cosine:
    lr (min + (1 - min) (1 + cos(pi p)) / 2). Over the last ``lr_decay_ratio`` of the steps
    linear to 0 at the latest. The end of a schedule is reached one step after the last.
    """
    warmup = max(settings.warmup_steps, int(settings.warmup_ratio * total_steps))
    rising = (step + 1) / warmup if warmup else 1.0
    progress = min(1.0, max(0.0, (step - warmup) / max(1, total_steps - warmup)))
    shape = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": (1.0 + math.cos(math.pi * progress)) / 2,
    }[settings.lr_schedule]
    scheduled = settings.min_lr_ratio + (1.0 - settings.min_lr_ratio) * shape
    decay_steps = settings.lr_decay_ratio * total_steps
    falling = (total_steps - step) / decay_steps if decay_steps else 1.0
    return settings.lr * max(min(rising, scheduled, falling), 0.0)


@torch.no_grad()
def clipped_step(
    optimizer: torch.optim.Optimizer,
    model: PackedModel,
    settings: OptimSettings,
    index: int,
    total_steps: int,
) -> tuple[float, bool]:
    """Clip by the global norm, step, clear. Collective.

    A gradient that is not finite is discarded, because it would make every weight NaN. All
    ranks have the same norm, so all ranks skip, and a warning names the step.

    Returns:
        The L2 norm of the whole gradient before clipping, and whether it stepped.
    """
    split, common = _gradients(optimizer, model)
    norm = _global_norm(split, common, model)
    gradients = split + common
    finite = math.isfinite(norm)
    if finite:
        coefficient = settings.max_grad_norm / (norm + 1e-6)
        if coefficient < 1.0:
            for gradient in gradients:
                gradient.mul_(coefficient)
        if not settings.adafactor_relative_step or settings.optimizer != "adafactor":
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(settings, index, total_steps)
        optimizer.step()
    elif model.world.is_rank0:
        logger.warning(
            "step %d: the gradient is not finite, so this update of the weights is left out"
            " (updates_skipped): a loss, an advantage or a weight of algorithms is too large",
            index,
        )
    optimizer.zero_grad(set_to_none=True)
    return norm, finite


def _gradients(
    optimizer: torch.optim.Optimizer, model: PackedModel
) -> tuple[list[Tensor], list[Tensor]]:
    """Local gradients of weights that a tensor group splits, and of weights that each has."""
    world = model.world
    split, common = [], []
    for parameter, name in _names(optimizer, model).items():
        if parameter.grad is None:
            continue
        gradient = collectives.local_shard(parameter.grad)
        if collectives.split_over(parameter, "tensor"):
            split.append(gradient)
            continue
        common.append(world.sum_of_parts_(gradient))
        if world.tensor > 1 and name not in model.module.partial:
            gradient /= world.tensor  # the same but for rounding; so the weights stay the same
    return split, common


def _global_norm(split: list[Tensor], common: list[Tensor], model: PackedModel) -> float:
    # Each rank's shards are different parts of the gradient: the squares add up.
    square = torch.zeros((), dtype=torch.float64)
    if split:
        square += torch.nn.utils.get_total_norm(split).double().cpu() ** 2
    model.world.sum_of_parts_(square)
    if common:
        square += torch.nn.utils.get_total_norm(common).double().cpu() ** 2
    return math.sqrt(float(model.world.sum_(square)))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


# --- state -----------------------------------------------------------------------------


@torch.no_grad()
def optimizer_state(
    optimizer: torch.optim.Optimizer, model: PackedModel
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state as this rank holds it: its shards, and whole what is not sharded.

    Returns:
        Tensors by ``parameter/entry`` (as ``model.norm.weight/exp_avg``), not copied; and
        the rest as JSON, independent of the number of ranks.
    """
    names = _names(optimizer, model)
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for parameter, name in names.items():
        for entry, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                numbers.setdefault(name, {})[entry] = value
                continue
            tensors[f"{name}/{entry}"] = value.detach()
    return tensors, {
        "optimizer": _saved_name(optimizer),
        "parameters": list(names.values()),
        "lr": [group["lr"] for group in optimizer.param_groups],
        "numbers": numbers,
    }


@torch.no_grad()
def load_optimizer_state(
    optimizer: torch.optim.Optimizer,
    model: PackedModel,
    tensors: Mapping[str, Sliceable],
    numbers: Mapping[str, Any],
    *,
    everywhere: bool = False,
) -> None:
    """Load whole tensors of :func:`optimizer_state`, on any number of ranks. Collective.

    Betas, decay and the like come from the settings.

    Args:
        everywhere: every rank passes all tensors and reads its part. Otherwise only the
            arguments of rank 0 are used.

    Raises:
        ConfigError: the state is of another optimizer or of different parameters; on every
            rank alike, and before anything has changed.
    """
    world = model.world
    names = _names(optimizer, model)
    numbers = world.share(dict(numbers))
    shapes = {key: [list(t.shape), str(t.dtype)] for key, t in tensors.items()}
    shapes = world.share(shapes)
    if numbers["optimizer"] != _saved_name(optimizer):
        raise ConfigError(
            f"the saved state is of {numbers['optimizer']}, but the settings name"
            f" {_saved_name(optimizer)}; set the same optimizer as before"
        )
    if numbers["parameters"] != list(names.values()):
        raise ConfigError(
            "the saved optimizer state is of other parameters than those that train now;"
            " keep the settings that choose the model, its layers and its adapter"
        )
    for group, lr in zip(optimizer.param_groups, numbers["lr"]):
        group["lr"] = lr
    by_name = {name: parameter for parameter, name in names.items()}
    optimizer.state.clear()
    for name, entries in numbers["numbers"].items():
        optimizer.state[by_name[name]].update(entries)
    for key, (shape, dtype) in shapes.items():
        name, _, entry = key.rpartition("/")
        parameter = by_name[name]
        if everywhere:
            value: Sliceable = tensors[key]
        elif world.is_rank0:
            value = world.broadcast_(tensors[key][()].to(world.device).contiguous())
        else:
            kind = getattr(torch, dtype.removeprefix("torch."))
            value = world.broadcast_(torch.empty(shape, dtype=kind, device=world.device))
        optimizer.state[parameter][entry] = _local_state(optimizer, parameter, value)
        if isinstance(optimizer, OffloadedAdamW):
            optimizer.offload(parameter)


def _saved_name(optimizer: torch.optim.Optimizer) -> str:
    """The kind of its state; where the moments lie makes no difference."""
    plain = isinstance(optimizer, OffloadedAdamW)
    return torch.optim.AdamW.__name__ if plain else type(optimizer).__name__


def _local_state(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter, value: Sliceable
) -> Tensor:
    """A whole state tensor where this optimizer keeps the state of this parameter."""
    if not value.shape:
        # AdamW counts its steps on the device only if it is fused.
        fused = optimizer.defaults.get("fused")
        return value[()].to(parameter.device if fused else "cpu", copy=True)
    sharded = isinstance(parameter, DTensor) and value.shape == parameter.shape
    if not sharded or getattr(optimizer, "state_is_full", False):
        return value[()].to(parameter.device, copy=True)
    part = torch.empty_like(parameter, dtype=value.dtype)
    collectives.set_full_tensor(part, value)
    return part


def _names(optimizer: torch.optim.Optimizer, model: PackedModel) -> dict[nn.Parameter, str]:
    """Parameters in the optimizer's order, and their names in ``model.module``."""
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    return {parameter: names[parameter] for parameter in _parameters(optimizer)}
