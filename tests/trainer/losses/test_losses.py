"""Tests of every loss: gradients, masked and non-finite inputs, sums over parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from atroposlib.errors import ConfigError
from example_trainer import loss_properties as properties, losses
from tests.trainer.loss_batches import gradient, random_batch, run, settings

EVERY = sorted(losses.FORMULAS)


CLIPPED = ["decoupled", "grpo", "ppo"]


TAUGHT = sorted(losses.OF_A_TEACHER)


def needs_proximal(name):
    return losses.needs_proximal(settings(loss=name))


VARIANTS = [
    # The weight of cispo follows the policy without a gradient: tests/trainer/losses/test_cispo.py.
    *((name, {}) for name in EVERY if name != "cispo"),
    *((name, {"ratio_to": "sampler"}) for name in ("decoupled", "gspo", "sapo")),
    *((name, {"dual_clip": 1.5, "clip_eps_high": 0.5}) for name in CLIPPED),
    *(
        (name, {"importance_weight": kind, "importance_level": level, "importance_cap": 1.2})
        for name in ("decoupled", "gspo", "sapo", "reinforce")
        for kind in ("truncate", "mask", "none")
        for level in ("token", "sequence")
    ),
    ("gspo", {"clip_eps": 0.01}),
    ("distillation", {"distill_temperature": 2.0}),
    ("reverse_kl", {"ratio_to": "sampler"}),
    *(
        (name, {"distill_rest": "bucket", "distill_temperature": temperature})
        for name in ("distillation", "jsd")
        for temperature in (1.0, 2.0)
    ),
]


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_the_gradient_is_the_derivative(name, fields):
    properties.check_the_gradient(losses.formula(name), settings(**fields))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("check", properties.PROPERTIES[1:])
def test_every_loss_has_every_property(name, check):
    check(losses.formula(name))


LINEAR = {"cross_entropy", "distillation", "reinforce"}  # in log p


@pytest.mark.parametrize("name", sorted({*EVERY} - LINEAR))
def test_a_nan_in_a_trained_token_makes_the_gradient_nan(name):
    batch = random_batch()
    batch["logprobs"][0, 0] = float("nan")
    assert gradient(name, batch).isnan().any()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (name, "advantages")
        for name in EVERY
        if losses.needs_sampler(name) and name not in TAUGHT
    ]
    + [(name, "behaviour") for name in EVERY if losses.needs_sampler(name)]
    + [(name, "proximal") for name in EVERY if needs_proximal(name) and name != "m2po"]
    + [(name, "mask") for name in EVERY]
    + [(name, "teacher") for name in TAUGHT],
)
def test_a_nan_in_any_input_makes_the_loss_nan(name, key):
    batch = random_batch()
    batch[key][0, 0] = float("nan")
    for kind in ("truncate", "mask"):
        assert run(name, batch, settings(importance_weight=kind))[0].isnan()


def test_parts_of_a_batch_add_up_with_a_mask_of_the_whole_batch():
    inputs = properties.random_inputs(rows=6)
    mask_of = losses.batch_mask_of("m2po")
    keep = torch.tensor(
        mask_of(inputs.proximal_logprobs, inputs.behaviour_logprobs, settings())
    )
    loss, inputs = losses.formula("m2po"), replace(inputs, keep=keep)
    properties.check_parts_add_up(loss, inputs=inputs)


@pytest.mark.parametrize("name", sorted(set(EVERY) - set(TAUGHT)))
def test_half_precision_is_computed_in_single(name):
    batch = random_batch()
    low = {key: value.bfloat16() for key, value in batch.items()}
    single = {key: value.float() for key, value in low.items()}
    assert run(name, low)[0] == run(name, single)[0]
    assert run(name, low)[0].dtype == torch.float32


@pytest.mark.parametrize(
    "name", ["decoupled", "ppo", "grpo", "gspo", "sapo", "m2po", "reinforce", "cispo"]
)
@pytest.mark.parametrize("eps", [0.0, 0.2])
def test_when_all_three_policies_agree_every_loss_is_the_policy_gradient(name, eps):
    """r = w = 1: the gradient is -A grad log p and no setting of the clip matters."""
    batch = random_batch()
    batch["proximal"] = batch["behaviour"] = batch["logprobs"].clone()
    batch["advantages"] = batch["advantages"][:, :1].expand(-1, 5).clone()  # gspo: one per row
    cfg = settings(clip_eps=eps, m2_threshold=1e-9)
    expected = -batch["advantages"] * batch["mask"]
    assert torch.allclose(gradient(name, batch, cfg), expected, atol=1e-12)
    _, metrics = run(name, batch, cfg)
    trained = float(batch["mask"].sum())
    for one in {"ratio_mean", "importance_weight"} & metrics.keys():
        assert float(metrics[one]) == trained
    for zero in metrics.keys() - {"ratio_mean", "importance_weight"}:
        assert float(metrics[zero]) == 0


@pytest.mark.parametrize("name", [name for name in EVERY if not losses.needs_sampler(name)])
def test_losses_without_a_sampler_ignore_it_and_the_advantages(name):
    batch = random_batch()
    nothing = {**batch, "behaviour": None, "proximal": None, "advantages": None}
    assert run(name, nothing)[0] == run(name, batch)[0]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("ratio_to", ["trainer", "sampler"])
def test_losses_that_need_no_proximal_policy_ignore_it(name, ratio_to):
    cfg, batch = settings(loss=name, ratio_to=ratio_to), random_batch()
    other = {**batch, "proximal": torch.full_like(batch["proximal"], float("nan"))}
    is_ignored = bool(run(name, other, cfg)[0] == run(name, batch, cfg)[0])
    assert is_ignored or losses.needs_proximal(cfg)


RATIOS = ["decoupled", "ppo", "grpo", "gspo", "sapo", "cispo"]


@pytest.mark.parametrize("name", RATIOS)
def test_at_the_first_step_no_token_loses_its_gradient_to_the_rounding_of_the_engine(name):
    """Same weights, 0.06 nats apart as in bfloat16: -w A grad log p, and nothing is clipped."""
    batch = random_batch(rows=64, tokens=96, spread=0.06)
    batch["logprobs"] = batch["proximal"].clone()
    batch["advantages"] = batch["advantages"][:, :1].expand(-1, 96).clone()
    weight = (batch["proximal"] - batch["behaviour"]).exp()
    expected = -weight * batch["advantages"] * batch["mask"]
    found = gradient(name, batch)
    assert bool((found != 0).eq(batch["mask"] != 0).all())
    if name == "gspo":  # each token carries its row's sum
        found, expected = found.sum(1), expected.sum(1)
    assert torch.allclose(found, expected)
    _, metrics = run(name, batch)
    assert float(metrics.get("clip_ratio", 0.0)) == 0.0


@pytest.mark.parametrize("name", EVERY)
def test_settings_may_be_any_object_with_the_fields_that_matter(name):
    batch = random_batch()
    some = SimpleNamespace(clip_eps=0.1, dual_clip=None)
    assert run(name, batch, some)[0] == run(name, batch, settings(clip_eps=0.1))[0]


def test_extreme_ratios_stay_finite():
    batch = random_batch()
    batch["logprobs"][0, 0], batch["logprobs"][1, 0] = 0.0, -500.0
    batch["behaviour"][0, 0] = batch["proximal"][0, 0] = -500.0
    for name in EVERY:
        single = {key: value.float() for key, value in batch.items()}
        assert run(name, single)[0].isfinite() and gradient(name, single).isfinite().all()


def test_every_file_of_a_loss_has_a_name():
    folder = Path(losses.__file__).parent
    named = {
        ".".join(file.relative_to(folder).with_suffix("").parts)
        for file in folder.rglob("*.py")
        if "\ndef loss(" in file.read_text(encoding="utf-8")
    }
    assert named == set(losses.FORMULAS.values())


def test_an_unknown_loss_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="there are: cispo, cross_entropy, decoupled"):
        losses.get("ppo3")
