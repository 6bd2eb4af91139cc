"""Tests of the learning rate, one clipped step, and a restored optimizer."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load, save

from atroposlib.errors import ConfigError
from example_trainer.model import loading, state_dict
from example_trainer.update.optimizer import (
    build_optimizer,
    clipped_step,
    learning_rate,
    load_optimizer_state,
    optimizer_state,
)


def test_warm_up_rises_linearly_then_stays(config):
    cfg = config(lr=8.0, warmup_steps=4)
    assert [learning_rate(cfg, s, cfg.training_steps) for s in range(6)] == [
        2.0,
        4.0,
        6.0,
        8.0,
        8.0,
        8.0,
    ]
    assert learning_rate(config(lr=8.0), 0, 10) == 8.0


def test_the_rate_decays_linearly_over_the_last_steps(config):
    cfg = config(lr=8.0, lr_decay_ratio=0.5, training_steps=8)
    rates = [learning_rate(cfg, s, cfg.training_steps) for s in range(10)]
    assert rates == [8.0, 8.0, 8.0, 8.0, 8.0, 6.0, 4.0, 2.0, 0.0, 0.0]
    warm = config(lr=8.0, lr_decay_ratio=1.0, training_steps=4, warmup_steps=2)
    assert [learning_rate(warm, s, warm.training_steps) for s in range(4)] == [
        4.0,
        6.0,
        4.0,
        2.0,
    ]


def test_the_gradient_is_clipped_by_its_global_norm(config, policy):
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    before = [p.detach().clone() for p in policy.parameters()]
    for p in policy.parameters():
        p.grad = torch.ones_like(p)
    norm, stepped = clipped_step(optimizer, policy, config(lr=1.0, max_grad_norm=0.5), 0, 10)
    moved = torch.cat(
        [(a - p.detach()).flatten() for a, p in zip(before, policy.parameters())]
    )
    assert stepped and norm == pytest.approx(moved.numel() ** 0.5, rel=1e-4)
    assert float(moved.norm()) == pytest.approx(0.5, rel=1e-3)


def test_nonfinite_gradient_is_skipped_and_named(config, policy, caplog):
    optimizer = build_optimizer(policy, config())
    before = policy.parameters()[0].detach().clone()
    policy.parameters()[0].grad = torch.full_like(before, float("nan"))
    _, stepped = clipped_step(optimizer, policy, config(), 3, 10)
    assert not stepped and torch.equal(policy.parameters()[0], before)
    assert policy.parameters()[0].grad is None
    assert "step 3: the gradient is not finite" in caplog.text


def test_eight_bit_adam_without_its_library_is_plain_adam_with_a_notice(
    config, policy, caplog
):
    caplog.set_level("INFO")
    optimizer = build_optimizer(policy, config(optimizer="adamw_8bit"))
    assert type(optimizer) is torch.optim.AdamW
    assert "using adamw" in caplog.text


def test_adafactor_follows_its_settings(config, policy):
    optimizer = build_optimizer(policy, config(optimizer="adafactor", lr=0.25))
    group = optimizer.param_groups[0]
    assert (group["lr"], group["relative_step"]) == (0.25, False)


def test_a_share_of_the_steps_warms_up_and_the_longer_warm_up_counts(config):
    cfg = config(lr=8.0, warmup_ratio=0.25, training_steps=16)
    assert [learning_rate(cfg, s, cfg.training_steps) for s in range(5)] == [
        2.0,
        4.0,
        6.0,
        8.0,
        8.0,
    ]
    both = config(lr=8.0, warmup_ratio=0.25, training_steps=16, warmup_steps=8)
    assert learning_rate(both, 0, both.training_steps) == 1.0


def test_linear_and_cosine_schedules_fall_to_their_floor(config):
    fall = {"lr": 8.0, "min_lr_ratio": 0.25, "training_steps": 6, "warmup_steps": 2}
    linear = config(lr_schedule="linear", **fall)
    rates = [learning_rate(linear, s, linear.training_steps) for s in range(8)]
    assert rates == [4.0, 8.0, 8.0, 6.5, 5.0, 3.5, 2.0, 2.0]
    cosine = config(lr_schedule="cosine", **fall)
    rates = [learning_rate(cosine, s, cosine.training_steps) for s in (2, 4, 6, 7)]
    assert rates == pytest.approx([8.0, 5.0, 2.0, 2.0])
    quarter = 2.0 + 6.0 * (1 + 0.5**0.5) / 2  # cos(pi / 4)
    assert learning_rate(cosine, 3, cosine.training_steps) == pytest.approx(quarter)


def test_plain_descent_decays_weights_by_the_rate(config, policy):
    cfg = config(optimizer="sgd", lr=0.5, weight_decay=0.1, max_grad_norm=1e9)
    optimizer = build_optimizer(policy, cfg)
    parameter = policy.parameters()[0]
    before = parameter.detach().clone()
    parameter.grad = torch.full_like(parameter, 2.0)
    clipped_step(optimizer, policy, cfg, 0, cfg.training_steps)
    expected = before - 0.5 * (2.0 + 0.1 * before)
    assert torch.allclose(parameter, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "adafactor", "sgd"])
def test_a_restored_optimizer_continues_bit_for_bit(config, name):
    def step(policy, optimizer, cfg, index):
        generator = torch.Generator().manual_seed(index)
        for parameter in policy.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        clipped_step(optimizer, policy, cfg, index, cfg.training_steps)

    cfg = config(optimizer=name, lr=1e-2)
    policy = loading.load_policy(cfg)
    optimizer = build_optimizer(policy, cfg)
    step(policy, optimizer, cfg, 0)
    weights = state_dict.full_weights(policy)
    tensors, numbers = optimizer_state(optimizer, policy)
    written = save(tensors)

    other = loading.load_policy(cfg)
    restored = build_optimizer(other, cfg)
    state_dict.load_full_weights(other, weights)
    load_optimizer_state(restored, other, load(written), json.loads(json.dumps(numbers)))
    for some, its_optimizer in ((policy, optimizer), (other, restored)):
        for index in (1, 2):
            step(some, its_optimizer, cfg, index)
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), other.parameters()))
    assert restored.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_state_of_other_parameters_is_refused(config, policy):
    tensors, numbers = optimizer_state(build_optimizer(policy, config()), policy)
    cfg = config(train_layer_indices=[1])
    fewer = loading.load_policy(cfg)
    with pytest.raises(ConfigError, match="other parameters"):
        load_optimizer_state(build_optimizer(fewer, cfg), fewer, tensors, numbers)
