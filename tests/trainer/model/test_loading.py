"""Loading a model: precision, limits, layers, reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atroposlib.errors import ConfigError
from example_trainer.model import loading
from example_trainer.model.scoring import decoder_layers
from tests.trainer.architectures import plain_logprobs, write
from tests.trainer.families import family_of
from tests.trainer.rows import ROWS, flat


def gradient(policy):
    for plan in policy.plan(ROWS):
        policy.score(plan).logprobs.sum().backward()
    return [p.grad for p in policy.parameters()]


def test_recomputing_activations_changes_no_gradient(config, policy):
    saving = loading.load_policy(config(gradient_checkpointing=True))
    assert all(layer.training for layer in decoder_layers(saving.model))
    assert not any(module.training for module in policy.model.modules())
    for ours, theirs in zip(gradient(saving), gradient(policy)):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_recomputing_activations_adds_no_noise_of_dropout_or_routers(config, tmp_path):
    family = family_of("phi-moe")
    noise = {"input_jitter_noise": 0.3, "hidden_dropout": 0.3, "attention_dropout": 0.3}
    noisy = replace(family, settings=family.settings | noise)
    path = str(write(noisy, tmp_path / "noisy"))
    saving = loading.load_policy(config(model_name=path, gradient_checkpointing=True))
    found = flat(saving.trained_logprobs(ROWS))
    assert found == pytest.approx(flat(plain_logprobs(tmp_path / "noisy", ROWS)), abs=1e-4)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_parameters(config, policy):
    low = loading.load_policy(config(dtype="bfloat16"))
    assert {p.dtype for p in low.parameters()} == {torch.float32}
    (exact,) = policy.logprobs_of([ROWS[0].tokens])
    (rounded,) = low.logprobs_of([ROWS[0].tokens])
    distance = max(abs(a - b) for a, b in zip(exact, rounded))
    assert 0 < distance < config(dtype="bfloat16").logprob_tolerance
    assert all(g.dtype is torch.float32 for g in gradient(low))


def test_rows_are_never_longer_than_the_model_allows(config):
    assert loading.load_policy(config(seq_len=64)).max_tokens_per_row == 64
    assert (
        loading.load_policy(config(seq_len=2048)).max_tokens_per_row == 256
    )  # of the tiny model


def test_missing_model_is_named_in_the_error(config):
    with pytest.raises(ConfigError, match="no-such-model"):
        loading.load_policy(config(model_name="./no-such-model"))


def test_layers_that_are_not_named_stay_as_they_are(config):
    policy = loading.load_policy(config(train_layer_indices="1"))
    names = [n for n, p in policy.model.named_parameters() if p.requires_grad]
    assert names and all(name.startswith("model.layers.1.") for name in names)
    assert all(g is not None and g.any() for g in gradient(policy))
    with pytest.raises(ConfigError, match=r"\[7\].* 2 layers"):
        loading.load_policy(config(train_layer_indices="0,7"))


def test_weights_whose_names_match_a_pattern_stay_and_the_others_train(config):
    policy = loading.load_policy(config(freeze=["*mlp*", "*.0.*"]))
    frozen = {n for n, p in policy.model.named_parameters() if not p.requires_grad}
    names = {n for n, _ in policy.model.named_parameters()}
    assert frozen == {n for n in names if "mlp" in n or ".0." in n} != set()


@pytest.mark.parametrize(
    ("patterns", "problem"),
    [(["visual*"], "no weight has such a name.*model"), (["*"], "no weight is left to train")],
)
def test_a_pattern_that_freezes_nothing_or_all_is_refused(config, patterns, problem):
    with pytest.raises(ConfigError, match=problem):
        loading.load_policy(config(freeze=patterns))


def test_from_scratch_has_the_shape_but_not_the_weights(config, policy):
    fresh = loading.load_policy(config(init_from_scratch=True, seed=3))
    reference = loading.load_reference(config(init_from_scratch=True, seed=3))
    for ours, theirs, given in zip(
        fresh.parameters(), reference.model.parameters(), policy.parameters()
    ):
        assert ours.shape == given.shape and torch.equal(ours, theirs)
    assert fresh.logprobs_of([[5, 6, 7]]) != policy.logprobs_of([[5, 6, 7]])


def test_reference_model_is_the_initial_policy_and_frozen(config, policy):
    reference = loading.load_reference(config())
    assert reference.parameters() == []
    found, expected = (flat(one.trained_logprobs(ROWS)) for one in (reference, policy))
    assert found == pytest.approx(expected, abs=1e-6)
    (plan,) = reference.plan(ROWS)
    assert not reference.score(plan).logprobs.requires_grad


def test_reference_model_can_be_configured(config, tmp_path, policy):
    from atroposlib.testing.tiny import write_tiny_model

    other = write_tiny_model(tmp_path / "other", seed=9)
    reference = loading.load_reference(config(), str(other))
    found, start = (flat(one.trained_logprobs(ROWS)) for one in (reference, policy))
    assert found != pytest.approx(start, abs=1e-3)
