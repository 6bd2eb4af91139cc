"""Tests of the step on one batch: independence of packing; minibatches, epochs, extras."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atroposlib.errors import StaleWeights
from example_trainer import losses
from example_trainer.advantage.prepare import Prepared
from example_trainer.data.rows import at_trained
from example_trainer.model import loading
from example_trainer.model.critic import load_value_model
from example_trainer.model.model_dir import TrainerState
from example_trainer.state import StopSignal
from example_trainer.update import step as learn
from example_trainer.weights.agreement import Agreement
from example_trainer.weights.verify import SamplerCheck
from tests.trainer.rows import row

START = TrainerState("run", 0, 0, None)
ROWS = [row([5, 6, 7], list(range(8, 9 + n))) for n in (1, 3, 5, 8)]


def sampled_by(policy, rows, **fields):
    """Build the rows as sampled by this policy, with advantages that differ by row."""
    exact = policy.logprobs_of([one.tokens for one in rows])
    rows = [
        row(one.tokens[:3], one.tokens[3:], one.group, behaviour_logprobs=logprobs, **fields)
        for one, logprobs in zip(rows, exact)
    ]
    return Prepared(rows, [[i - 1.5] * len(one.trained) for i, one in enumerate(rows)])


def step(cfg, edit=lambda policy: None, rows=ROWS, also=lambda prepared: None, **fields):
    policy = loading.load_policy(cfg)
    edit(policy)
    optimizer = torch.optim.SGD(policy.parameters(), lr=cfg.lr)
    prepared = sampled_by(policy, rows, **fields)
    also(prepared)
    told = learn.learn(cfg, policy, optimizer, prepared, START, StopSignal())
    return told, [p.detach().clone() for p in policy.parameters()]


def difference(some, others):
    return max(float((a - b).abs().max()) for a, b in zip(some, others))


def test_metrics_name_what_was_compared(config):
    """Null where no token could be; the drift of older tokens is another metric."""
    cfg, state = config(lr=1e-9), START
    policy = loading.load_policy(cfg)
    for version, state in ((0, START), (0, replace(START, step=1, version=1)), (-1, START)):
        prepared = sampled_by(policy, ROWS)
        prepared.rows = [
            replace(one, versions=[version] * len(one.labels)) for one in prepared.rows
        ]
        optimizer = torch.optim.SGD(policy.parameters(), lr=cfg.lr)
        told = learn.learn(cfg, policy, optimizer, prepared, state, StopSignal())
        held = version == state.version
        assert (told["logprob_mismatch_max"] is not None) is held
        assert ("logprob_drift_mean" in told) is (version == 0 and not held)


def test_tokens_of_a_version_that_unpublished_steps_left_are_not_those_of_the_weights_held():
    rows = [row([1], [2, 3], versions=[4, 4])]
    state = replace(START, step=4, version=4)
    assert SamplerCheck.of(rows, state, Agreement.of("float32", 0.1)).is_held
    assert not SamplerCheck.of(
        rows, replace(state, step=5), Agreement.of("float32", 0.1)
    ).is_held


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_the_step_does_not_depend_on_microbatches_or_packing(config, aggregation):
    settings = {
        "lr": 1.0,
        "loss_aggregation": aggregation,
        "max_grad_norm": 1e9,
        "entropy_coef": 0.01,
    }
    told, whole = step(config(**settings))
    told_apart, apart = step(
        config(**settings, max_tokens_per_microbatch=12, share_prefixes=False)
    )
    told_padded, padded = step(config(**settings, packing="padded", share_prefixes=False))
    assert told["padding_share"] == 0 < told_padded["padding_share"]
    assert told["packed_tokens"] < told_apart["packed_tokens"]
    assert told["loss"] == pytest.approx(told_apart["loss"], abs=1e-5)
    assert difference(whole, apart) < 1e-5 and difference(whole, padded) < 1e-5


def test_each_token_weighs_the_same(config):
    """loss = -sum(A) / tokens at ratio 1: A = i - 1.5 on 2, 4, 6, 9 tokens."""
    told, _ = step(config())
    expected = -(-1.5 * 2 - 0.5 * 4 + 0.5 * 6 + 1.5 * 9) / 21
    assert told["loss"] == pytest.approx(expected, abs=1e-4)
    assert told["ratio_mean"] == pytest.approx(1.0, abs=1e-6)  # the first minibatch: exactly
    assert told["importance_weight"] == pytest.approx(1.0, abs=1e-4)  # trainer = sampler
    assert told["approx_kl"] == pytest.approx(0.0, abs=1e-6)


def test_each_sequence_weighs_the_same_with_sequence_aggregation(config):
    told, _ = step(config(loss_aggregation="sequence"))
    assert told["loss"] == pytest.approx(-(-1.5 - 0.5 + 0.5 + 1.5) / 4, abs=1e-4)


def test_constant_aggregation_divides_sequence_sums_by_a_length(config):
    told, _ = step(config(loss_aggregation="constant", aggregation_length=10))
    total = -(-1.5 * 2 - 0.5 * 4 + 0.5 * 6 + 1.5 * 9)
    assert told["loss"] == pytest.approx(total / (4 * 10), abs=1e-4)


@pytest.mark.parametrize("more", [{"epochs_per_batch": 2}, {"minibatches": 2}])
def test_a_later_update_on_a_batch_is_off_policy(config, more):
    told, _ = step(config(lr=1e-2, **more))
    assert told["optimizer_steps"] == 2
    assert told["ratio_mean"] != pytest.approx(1.0, abs=1e-4)
    assert told["logprob_mismatch_max"] < 1e-4  # of the first update


def test_minibatches_with_learning_rate_near_zero_add_up_to_the_batch(config):
    told, _ = step(config(lr=1e-12))
    cut, _ = step(config(lr=1e-12, minibatches=3))
    assert cut["entropy"] == pytest.approx(told["entropy"], abs=1e-5)
    assert cut["training_logprob_mean"] == pytest.approx(told["training_logprob_mean"])


def test_the_entropy_bonus_raises_entropy(config):
    before, _ = step(config(lr=0.1, entropy_coef=0.0))

    def after(coefficient):
        cfg = config(lr=0.1, entropy_coef=coefficient, epochs_per_batch=3)
        return step(cfg)[0]["entropy"]

    assert before["entropy"] > 0
    assert after(5.0) > after(0.0)


def test_a_kl_in_the_loss_pulls_towards_the_reference(config):
    """Reference a nat above on every token: k2's gradient raises the logprobs."""

    def reference(prepared):
        prepared.advantages_R_T = [[0.0] * len(r.trained) for r in prepared.rows]
        prepared.reference_R_T = [
            [value + 1.0 for value in at_trained(r, r.behaviour_logprobs)]
            for r in prepared.rows
        ]

    cfg = config(lr=0.1, kl_coef=1.0, kl_estimator="k2", epochs_per_batch=2)
    pulled, _ = step(cfg, also=reference)
    free, _ = step(config(lr=0.1), also=reference)
    assert pulled["training_logprob_mean"] > free["training_logprob_mean"]


def test_the_kl_is_corrected_for_a_sampler_half_as_sure(config):
    """k2 a nat away is 0.5; the sampler gave every token half the policy's probability."""

    def stale(prepared):
        own = prepared.rows
        prepared.reference_R_T = [
            [value + 1.0 for value in at_trained(r, r.behaviour_logprobs)] for r in own
        ]
        prepared.advantages_R_T = [[0.0] * len(r.trained) for r in own]
        prepared.rows = [
            replace(r, behaviour_logprobs=[v - math.log(2) for v in r.behaviour_logprobs])
            for r in own
        ]

    options = {"lr": 1e-9, "kl_coef": 1.0, "kl_estimator": "k2", "max_logprob_mismatch": 1.0}
    plain, _ = step(config(**options), also=stale)
    corrected, _ = step(config(kl_bias_correction=True, **options), also=stale)
    assert plain["loss"] == pytest.approx(0.5, abs=1e-5)
    assert corrected["loss"] == pytest.approx(1.0, abs=1e-5)


def test_a_teacher_pulls_towards_its_choice(config):
    def teacher(one):
        return {
            "teacher_ids": [[3, 4] for _ in one.labels],
            "teacher_logprobs": [[-0.1, -2.4] for _ in one.labels],
        }

    rows = ROWS[:1]
    cfg = config(lr=0.5, loss="distillation", epochs_per_batch=3)
    once = config(lr=0.5, loss="distillation")
    first, _ = step(once, rows=rows, **teacher(rows[0]))
    later, _ = step(cfg, rows=rows, **teacher(rows[0]))
    assert later["loss"] < first["loss"]


@pytest.mark.parametrize(
    "loss", sorted(set(losses.FORMULAS) - {"distillation", *losses.OF_SAMPLED})
)
def test_every_loss_takes_finite_steps_over_minibatches(config, loss):
    told, _ = step(config(loss=loss, lr=1e-3, minibatches=2))
    assert told["optimizer_steps"] == 2 and math.isfinite(told["loss"])


def test_the_tokens_that_m2po_drops_do_not_depend_on_microbatches(config):
    """The sampler was another policy on two rows; their tokens lie far off."""

    def far_off(prepared):
        for r in prepared.rows[2:]:
            r.behaviour_logprobs[:] = [value - 1.0 for value in r.behaviour_logprobs]
            r.versions[:] = [-1] * len(r.versions)

    settings = {"loss": "m2po", "lr": 1.0, "max_grad_norm": 1e9}
    told, whole = step(config(**settings), also=far_off)
    cfg = config(**settings, max_tokens_per_microbatch=12, share_prefixes=False)
    _, apart = step(cfg, also=far_off)
    assert 0 < told["filtered_ratio"] < 1
    assert difference(whole, apart) < 1e-5


def test_cross_entropy_is_the_mean_negative_logprob(config):
    told, _ = step(config(loss="cross_entropy"))
    assert told["loss"] == pytest.approx(-told["training_logprob_mean"], abs=1e-5)


def test_tokens_of_this_version_with_other_logprobs_stop_the_step(config):
    def after_loading(policy):
        score = policy.logprobs_of
        policy.logprobs_of = lambda rows: [[x - 0.1 for x in r] for r in score(rows)]

    with pytest.raises(StaleWeights, match="not trained on"):
        step(config(), after_loading)


def test_empty_batch_leaves_the_weights_unchanged(config):
    told, weights = step(config(), rows=[])
    assert told["grad_norm"] == 0.0
    assert torch.equal(weights[0], loading.load_policy(config()).parameters()[0])


def test_the_critic_steps_with_its_own_learning_rate(config):
    cfg = config(lr=1e-6, critic_lr=0.5, optimizer="sgd")
    policy, model = loading.load_policy(cfg), load_value_model(cfg)
    weights = model.model.score.weight
    own = cfg.model_copy(update={"lr": cfg.critic_lr})
    critic = learn.Critic(model, torch.optim.SGD(model.parameters(), lr=cfg.critic_lr), own)
    prepared = sampled_by(policy, ROWS)
    prepared.values_R_T = model.trained_values(ROWS)
    prepared.returns_R_T = [[1.0] * len(one.trained) for one in ROWS]
    before = weights.detach().clone()
    optimizer = torch.optim.SGD(policy.parameters(), lr=cfg.lr)
    learn.learn(cfg, policy, optimizer, prepared, START, StopSignal(), critic)
    assert critic.optimizer.param_groups[0]["lr"] == 0.5
    assert not torch.equal(weights, before)


class Conversions(TorchDispatchMode):
    """Counts conversions of whole float32 matrices of a shape to bfloat16."""

    def __init__(self, shape):
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and args[0].shape == self.shape:
            self.count += (kwargs or {}).get("dtype") is torch.bfloat16
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_passes_of_a_step_convert_each_weight_once_and_to_the_same_gradient(
    config, monkeypatch, checkpointing
):
    unlike = [row([5 + n, 6, 7], list(range(8, 17))) for n in range(4)]
    common = {"dtype": "bfloat16", "lr": 1.0, "max_grad_norm": 1e9}
    cfg = config(**common, max_tokens_per_microbatch=12, gradient_checkpointing=checkpointing)

    def counted():
        policy = loading.load_policy(cfg)
        matrix = policy.model.model.layers[0].mlp.down_proj.weight
        optimizer = torch.optim.SGD(policy.parameters(), lr=cfg.lr)
        prepared = sampled_by(policy, unlike)
        passes = len(list(policy.plan_share(prepared.rows)))
        with Conversions(matrix.shape) as found:
            learn.learn(cfg, policy, optimizer, prepared, START, StopSignal())
        layers = len(policy.model.model.layers)
        return passes, found.count / layers, [p.detach().clone() for p in policy.parameters()]

    passes, count, weights = counted()
    assert passes >= 3 and count == 1
    monkeypatch.setattr(learn, "kept_casts", lambda device, dtype: nullcontext())
    _, each_pass, before = counted()
    assert each_pass >= passes
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(weights, before))
