"""AdamW whose moments lie in main memory: the same update, and where the moments are."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from atroposlib.errors import ConfigError
from example_trainer.settings.config import TrainingConfig
from example_trainer.update.offloaded import OffloadedAdamW
from example_trainer.update.optimizer import (
    build_optimizer,
    load_optimizer_state,
    optimizer_state,
)

OPTIONS = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-8, "weight_decay": 0.01}


def steps_of(optimizer, parameters, gradients):
    for gradient in gradients:
        for parameter in parameters:
            parameter.grad = gradient * parameter.numel()
        parameters[-1].grad = None  # one that nothing reaches
        optimizer.step()
    return [parameter.detach().clone() for parameter in parameters]


def test_the_update_is_that_of_adamw_bit_for_bit():
    torch.manual_seed(0)
    gradients = [torch.randn(3, 5) for _ in range(4)]
    ends = []
    for build in (torch.optim.AdamW, OffloadedAdamW):
        parameters = [torch.nn.Parameter(torch.full((3, 5), float(i))) for i in range(3)]
        options = OPTIONS | ({"fused": True} if build is torch.optim.AdamW else {})
        optimizer = build(
            [{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.5}], **options
        )
        ends.append(steps_of(optimizer, parameters, gradients))
        assert [len(group["params"]) for group in optimizer.param_groups] == [1, 2]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*ends))


def test_moments_rest_in_main_memory_and_are_updated_on_the_device(monkeypatch):
    updated = []

    def spied(self, closure=None):
        (group,) = self.param_groups
        state = self.state.get(group["params"][0], {})
        updated.append({name: value.device.type for name, value in state.items()})
        plain(self)

    plain = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", spied)
    stream = SimpleNamespace(synchronize=lambda: updated.append("synchronized"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    with FakeTensorMode():  # a device without memory
        weight = torch.nn.Parameter(torch.empty(4, 4, device="cuda"))
        optimizer = OffloadedAdamW([weight], lr=0.1)
        for _ in range(2):
            weight.grad = torch.empty(4, 4, device="cuda")
            optimizer.step()
        resting = {name: value.device.type for name, value in optimizer.state[weight].items()}
    on_device = {"step": "cuda", "exp_avg": "cuda", "exp_avg_sq": "cuda"}
    assert updated == [{}, "synchronized", on_device, "synchronized"]
    assert resting == {"step": "cuda", "exp_avg": "cpu", "exp_avg_sq": "cpu"}


@pytest.mark.parametrize("first", [False, True])
def test_a_run_goes_on_with_the_other_place_of_its_moments(config, policy, first):
    settings = [
        config(optimizer="adamw", optimizer_offload=place) for place in (first, not first)
    ]
    before, after = (build_optimizer(policy, chosen) for chosen in settings)
    for parameter in policy.parameters():
        parameter.grad = torch.ones_like(parameter)
    before.step()
    tensors, numbers = optimizer_state(before, policy)
    load_optimizer_state(after, policy, tensors, numbers)
    restored, _ = optimizer_state(after, policy)
    assert numbers["optimizer"] == "AdamW"
    assert all(torch.equal(restored[name], value) for name, value in tensors.items())


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit", "adafactor", "sgd"])
def test_only_the_moments_of_adamw_are_moved(optimizer):
    has_moments = optimizer == "adamw"
    with (
        nullcontext()
        if has_moments
        else pytest.raises(ConfigError, match="set --optimizer adamw")
    ):
        TrainingConfig(model_name="m", optimizer=optimizer, optimizer_offload=True)
