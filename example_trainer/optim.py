"""The optimizer, its warm-up, and one clipped step."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from example_trainer.config import TrainingConfig
from example_trainer.model import Policy


def build(policy: Policy, cfg: TrainingConfig) -> torch.optim.Optimizer:
    """The optimizer named in the settings; says so when it has to be another one."""
    parameters = policy.parameters()
    if cfg.optimizer == "adafactor":
        from transformers.optimization import Adafactor

        adafactor: Any = Adafactor
        optimizer: torch.optim.Optimizer = adafactor(
            parameters,
            lr=None if cfg.adafactor_relative_step else cfg.lr,
            scale_parameter=cfg.adafactor_scale_parameter,
            relative_step=cfg.adafactor_relative_step,
            weight_decay=cfg.weight_decay,
        )
        return optimizer
    betas = (cfg.adam_beta1, cfg.adam_beta2)
    shared: dict[str, Any] = {"lr": cfg.lr, "betas": betas, "eps": cfg.adam_eps}
    shared["weight_decay"] = cfg.weight_decay
    if cfg.optimizer == "adamw_8bit":
        if importlib.util.find_spec("bitsandbytes") and policy.device.type == "cuda":
            import bitsandbytes  # type: ignore[import-not-found, unused-ignore]

            eight_bit: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(
                parameters, **shared
            )
            return eight_bit
        print("optimizer adamw_8bit needs CUDA and bitsandbytes: using adamw", flush=True)
    return torch.optim.AdamW(parameters, fused=True, **shared)


def learning_rate(cfg: TrainingConfig, step: int) -> float:
    """Linear warm-up, constant, linear to 0 over the last ``lr_decay_share`` of the steps.

    Steps count from 0; the rate would be 0 one step after the last.
    """
    rising = (step + 1) / cfg.warmup_steps if cfg.warmup_steps else 1.0
    decay_steps = cfg.lr_decay_share * cfg.training_steps
    falling = (cfg.training_steps - step) / decay_steps if decay_steps else 1.0
    return cfg.lr * max(min(1.0, rising, falling), 0.0)


def step(
    optimizer: torch.optim.Optimizer, policy: Policy, cfg: TrainingConfig, index: int
) -> tuple[float, bool]:
    """Clip, step, clear. Returns the gradient norm before clipping and whether it stepped.

    A gradient that is not finite is thrown away: one such step would turn every weight
    into NaN. The caller reports it.
    """
    norm = float(torch.nn.utils.clip_grad_norm_(policy.parameters(), cfg.max_grad_norm))
    finite = norm == norm and norm != float("inf")
    if finite:
        if not cfg.adafactor_relative_step or cfg.optimizer != "adafactor":
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(cfg, index)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm, finite
