"""Losses and gradients of the real TRL for the same logprobs, with TRL's names and defaults."""

from __future__ import annotations

import os
from collections import defaultdict
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

if find_spec("trl") is None and os.environ.get("ATROPOS_ADAPTER_TESTS") != "1":
    pytest.skip("the package trl is missing: extra trl-test", allow_module_level=True)

from accelerate import Accelerator
from trl import GRPOTrainer

from tests.trainer.loss_batches import random_batch, run, settings

pytestmark = pytest.mark.filterwarnings("default")


class Compared(GRPOTrainer):
    """TRL's loss of given logprobs; what a run would set up stands here."""

    def __init__(self, logprobs, ratio, **options):
        defaults = {
            "loss_type": "dapo",
            "importance_sampling_level": "token",
            "epsilon_low": 0.2,
            "epsilon_high": 0.2,
        }
        for name, value in {**defaults, **options}.items():
            setattr(self, name, value)
        self.logprobs, self.ratio = logprobs, ratio
        self.args = SimpleNamespace(
            delta=None,
            use_bias_correction_kl=False,
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            steps_per_generation=1,
        )
        self.model = SimpleNamespace(training=True)
        self.beta, self.top_entropy_quantile, self.off_policy_mask_threshold = 0.0, 1.0, None
        self.aux_loss_enabled, self.use_vllm = False, ratio is not None
        self.vllm_importance_sampling_correction = True
        self.current_gradient_accumulation_steps = 1
        self._entropy_bonus_enabled = False
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.accelerator = Accelerator(cpu=True)

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        return self.logprobs, torch.zeros_like(self.logprobs), None


def of_trl(batch, ratio=None, **options):
    """Loss and gradient of TRL, a mean over tokens as ``dapo`` has it."""
    logprobs = batch["logprobs"].clone().requires_grad_()
    trainer = Compared(logprobs, ratio, **options)
    mask = batch["mask"]
    ids = torch.zeros(mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": batch["advantages"][:, 0],
        "old_per_token_logps": batch["proximal"],
        "num_items_in_batch": mask.sum(),
    }
    if ratio is not None:
        inputs["importance_sampling_ratio"] = ratio
    loss = trainer._compute_loss(None, inputs)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient


def of_ours(name, batch, **fields):
    logprobs = batch["logprobs"].clone().requires_grad_()
    total, _ = run(name, {**batch, "logprobs": logprobs}, settings(**fields))
    loss = total / batch["mask"].sum()
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient


@pytest.fixture
def batch():
    found = random_batch(rows=6, tokens=9)
    found["advantages"] = found["advantages"][:, :1].expand(-1, 9).clone()
    return found


def log_weights(batch):
    return (batch["proximal"] - batch["behaviour"]) * batch["mask"]


WEIGHTS = {  # TRL's vllm_importance_sampling_mode with cap 1.5, computed by its documents
    "token_truncate": lambda w, mask: w.exp().clamp(max=1.5),
    "token_mask": lambda w, mask: w.exp().masked_fill(w.exp() > 1.5, 0.0),
    "sequence_truncate": lambda w, mask: w.sum(-1, keepdim=True).exp().clamp(max=1.5),
    "sequence_mask": lambda w, mask: (
        w.sum(-1, keepdim=True).exp().masked_fill(w.sum(-1, keepdim=True).exp() > 1.5, 0.0)
    ),
}
LEVELS = {"token": "token", "sequence": "product"}


@pytest.mark.parametrize("mode", WEIGHTS)
@pytest.mark.parametrize(
    ("name", "options", "fields"),
    [
        ("grpo", {}, {}),
        ("grpo", {"epsilon_high": 0.28}, {"clip_eps": 0.2, "clip_eps_high": 0.28}),
        ("sapo", {"loss_type": "sapo"}, {}),
        ("cispo", {"loss_type": "cispo", "epsilon_high": 1.3}, {"clip_eps_high": 0.3}),
        (
            "gspo",
            {"importance_sampling_level": "sequence"},
            {"clip_eps": 0.2, "clip_eps_high": 0.2},
        ),
    ],
)
def test_a_loss_of_trl_has_the_same_value_and_gradient_here(
    batch, mode, name, options, fields
):
    level, _, kind = mode.partition("_")
    ours = {
        "importance_level": LEVELS[level],
        "importance_weight": kind,
        "importance_cap": 1.5,
        **fields,
    }
    if options.get("loss_type") == "sapo":  # a mean over rows, in TRL
        batch["mask"] = torch.ones_like(batch["mask"])
    ratio = WEIGHTS[mode](log_weights(batch), batch["mask"])
    theirs, their_gradient = of_trl(batch, ratio, **options)
    loss, gradient = of_ours(name, batch, **ours)
    assert float(loss) == pytest.approx(float(theirs), rel=1e-6)
    assert torch.allclose(gradient, their_gradient, atol=1e-7)


@pytest.mark.parametrize("name", ["grpo", "ppo", "decoupled"])
def test_without_an_engine_s_ratio_it_is_ppo(batch, name):
    theirs, their_gradient = of_trl(batch)
    loss, gradient = of_ours(name, batch, importance_weight="none")
    assert float(loss) == pytest.approx(float(theirs), rel=1e-6)
    assert torch.allclose(gradient, their_gradient, atol=1e-7)
