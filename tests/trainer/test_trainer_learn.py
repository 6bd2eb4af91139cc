"""One optimizer step: independent of micro-batches and packing, clipped, warmed up."""

from __future__ import annotations

import pytest
import torch

from atroposlib.errors import StaleWeights
from example_trainer import grpo, losses, model, optim, session
from example_trainer.checkpoint import TrainerState
from tests.trainer.rows import row

START = TrainerState("run", 0, 0, None)


def batch(policy, rows):
    """The rows as sampled by this very policy, with advantages that differ by row."""
    exact = policy.logprobs_of([one.tokens for one in rows])
    rows = [
        row(one.tokens[:3], one.tokens[3:], one.group, behaviour_logprobs=logprobs)
        for one, logprobs in zip(rows, exact)
    ]
    return rows, [[i - 1.5] * len(one.labels) for i, one in enumerate(rows)]


ROWS = [row([5, 6, 7], list(range(8, 9 + n))) for n in (1, 3, 5, 8)]


def step(cfg, edit=lambda policy: None, rows=ROWS):
    policy = model.load(cfg)
    edit(policy)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    rows, advantages_R_T = batch(policy, rows)
    told = grpo.learn(
        cfg, policy, optimizer, losses.get("grpo"), rows, advantages_R_T, START, session.Stop()
    )
    return told, [p.detach().clone() for p in policy.parameters()]


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_the_step_does_not_depend_on_micro_batches_or_packing(config, aggregation):
    def one_by_one(policy):
        policy.share_prefixes, policy.max_tokens_per_pass = False, 1

    cfg = config(lr=1.0, loss_aggregation=aggregation, max_grad_norm=1e9, entropy_coef=0.01)
    told, whole = step(cfg)
    told_apart, apart = step(cfg, one_by_one)
    assert told["packed_tokens"] < told_apart["packed_tokens"]
    assert told["loss"] == pytest.approx(told_apart["loss"], abs=1e-5)
    for ours, theirs in zip(whole, apart):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_each_token_weighs_the_same(config):
    """loss = -sum(A) / tokens at ratio 1: A = i - 1.5 on 2, 4, 6, 9 tokens."""
    told, _ = step(config())
    expected = -(-1.5 * 2 - 0.5 * 4 + 0.5 * 6 + 1.5 * 9) / 21
    assert told["loss"] == pytest.approx(expected, abs=1e-4)
    assert told["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert told["approx_kl"] == pytest.approx(0.0, abs=1e-6)


def test_each_sequence_weighs_the_same_if_asked(config):
    told, _ = step(config(loss_aggregation="sequence"))
    assert told["loss"] == pytest.approx(-(-1.5 - 0.5 + 0.5 + 1.5) / 4, abs=1e-4)


def test_a_second_epoch_on_a_batch_is_off_policy(config):
    told, _ = step(config(epochs_per_batch=2, lr=1e-2))
    assert told["ratio_mean"] != pytest.approx(1.0, abs=1e-4)
    assert told["logprob_mismatch_max"] < 1e-4  # of the first epoch


def test_the_entropy_bonus_raises_entropy(config):
    before, _ = step(config(lr=0.1, entropy_coef=0.0))

    def after(coefficient):
        cfg = config(lr=0.1, entropy_coef=coefficient, epochs_per_batch=3)
        return step(cfg)[0]["entropy"]

    assert before["entropy"] > 0
    assert after(5.0) > after(0.0)


def test_tokens_of_this_version_with_other_logprobs_stop_the_step(config):
    def after_loading(policy):
        score = policy.logprobs_of
        policy.logprobs_of = lambda rows: [[x - 0.1 for x in r] for r in score(rows)]

    with pytest.raises(StaleWeights, match="not trained on"):
        step(config(), after_loading)


def test_a_batch_of_nothing_changes_nothing(config):
    told, weights = step(config(), rows=[])
    assert told["loss"] == 0.0 and told["grad_norm"] == 0.0
    assert torch.equal(weights[0], model.load(config()).parameters()[0])


def test_warm_up_rises_linearly_then_stays(config):
    cfg = config(lr=8.0, warmup_steps=4)
    assert [optim.learning_rate(cfg, s) for s in range(6)] == [2.0, 4.0, 6.0, 8.0, 8.0, 8.0]
    assert optim.learning_rate(config(lr=8.0), 0) == 8.0


def test_the_rate_falls_in_equal_parts_over_the_last_share_of_the_steps(config):
    cfg = config(lr=8.0, lr_decay_share=0.5, training_steps=8)
    rates = [optim.learning_rate(cfg, s) for s in range(10)]
    assert rates == [8.0, 8.0, 8.0, 8.0, 8.0, 6.0, 4.0, 2.0, 0.0, 0.0]
    warm = config(lr=8.0, lr_decay_share=1.0, training_steps=4, warmup_steps=2)
    assert [optim.learning_rate(warm, s) for s in range(4)] == [4.0, 6.0, 4.0, 2.0]


def test_the_gradient_is_clipped_by_its_global_norm(config, policy):
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    before = [p.detach().clone() for p in policy.parameters()]
    for p in policy.parameters():
        p.grad = torch.ones_like(p)
    norm, stepped = optim.step(optimizer, policy, config(lr=1.0, max_grad_norm=0.5), 0)
    moved = torch.cat(
        [(a - p.detach()).flatten() for a, p in zip(before, policy.parameters())]
    )
    assert stepped and norm == pytest.approx(moved.numel() ** 0.5, rel=1e-4)
    assert float(moved.norm()) == pytest.approx(0.5, rel=1e-3)


def test_a_gradient_that_is_not_finite_is_thrown_away(config, policy):
    optimizer = optim.build(policy, config())
    before = policy.parameters()[0].detach().clone()
    policy.parameters()[0].grad = torch.full_like(before, float("nan"))
    _, stepped = optim.step(optimizer, policy, config(), 0)
    assert not stepped and torch.equal(policy.parameters()[0], before)
    assert policy.parameters()[0].grad is None


def test_eight_bit_adam_without_its_library_is_plain_adam_and_says_so(config, policy, capsys):
    optimizer = optim.build(policy, config(optimizer="adamw_8bit"))
    assert type(optimizer) is torch.optim.AdamW
    assert "using adamw" in capsys.readouterr().out


def test_adafactor_follows_its_settings(config, policy):
    optimizer = optim.build(policy, config(optimizer="adafactor", lr=0.25))
    group = optimizer.param_groups[0]
    assert (group["lr"], group["relative_step"]) == (0.25, False)
