"""Adafactor over shards: transformers' own step, a whole parameter at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers.optimization import Adafactor

from example_trainer.distributed import collectives


class UnshardedAdafactor(Adafactor):  # type: ignore[misc, unused-ignore]
    """Adafactor whose step does not depend on how its parameters are sharded.

    Its factors are means over whole rows and columns, and its step size has the root mean
    square of a whole weight. Every rank therefore makes the step of the whole parameter
    and keeps its own part of it. That costs the gathering of each parameter and gradient;
    the factors are small, and every rank holds all factors.
    """

    state_is_full = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        groups = self.param_groups
        for group in groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, {**group, "params": [parameter]})
        self.param_groups = groups

    def _step_one(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        if not isinstance(parameter, DTensor):
            self.param_groups = [group]
            super().step()  # type: ignore[no-untyped-call]
            return
        stand_in = nn.Parameter(collectives.full_tensor(parameter).clone())
        stand_in.grad = collectives.full_tensor(parameter.grad)
        self.param_groups = [{**group, "params": [stand_in]}]
        self.state[stand_in] = self.state[parameter]  # the same dictionary: filled for both
        super().step()  # type: ignore[no-untyped-call]
        del self.state[stand_in]
        collectives.set_full_tensor(parameter, stand_in.detach())
