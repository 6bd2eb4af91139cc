"""Whole optimizer steps on a teacher's logprobs: nothing from an equal, per environment, refusals."""

from __future__ import annotations

import pytest
import torch

from atroposlib.errors import ConfigError, InvalidGroup
from atroposlib.testing.tiny import char_tokenizer, write_tiny_model
from atroposlib.wire import MASKED, ScoredData
from example_trainer import Learner, TrainingConfig
from example_trainer.advantage.prepare import prepare_batch
from example_trainer.learner import load_references, training_rows
from example_trainer.model import loading
from example_trainer.model.model_dir import TrainerState
from example_trainer.state import StopSignal
from example_trainer.update.step import learn

SEQUENCES = [[5, 6, 7, 8], [5, 6, 9, 10, 11], [5, 6, 7, 12]]
PROMPT = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_model(tmp_path_factory.mktemp("model"), hidden_size=32))


def learner_of(model, **fields):
    return Learner(TrainingConfig(model_name=model, device="cpu", lr=1e-3, **fields))


@torch.no_grad()
def logprobs_of(policy, tokens):
    """(T, V) logprobs of every token but the first, by plain arithmetic of the model."""
    logits = policy.model(torch.tensor([tokens]), use_cache=False).logits[0]
    return [None, *logits[:-1].log_softmax(-1)]


def taught_group(policy, top_k, name=None, shift=0.0, noise=0.0):
    """A group whose teacher has the policy's own logprobs, ``shift`` nats off for the sampled."""
    ids_G, logprobs_G, sampler_G, masks = [], [], [], []
    torch.manual_seed(0)
    for tokens in SEQUENCES:
        rows = logprobs_of(policy, tokens)
        ids, logprobs, sampler = [[]] * PROMPT, [[]] * PROMPT, [1.0] * PROMPT
        for token, row in list(zip(tokens, rows))[PROMPT:]:
            kept = list(dict.fromkeys([token, *row.topk(top_k).indices.tolist()]))
            ids = [*ids, kept]
            logprobs = [*logprobs, [float(row[i]) + shift * (i == token) for i in kept]]
            sampler.append(float(row[token]) - noise * float(torch.rand(())))
        ids_G.append(ids)
        logprobs_G.append(logprobs)
        sampler_G.append(sampler)
        masks.append([MASKED] * PROMPT + tokens[PROMPT:])
    return ScoredData(
        tokens=SEQUENCES,
        masks=masks,
        scores=[1.0, 0.0, 0.5],
        inference_logprobs=sampler_G,
        distill_token_ids=ids_G,
        distill_logprobs=logprobs_G,
        generation_params={"temperature": 1.0},
        metadata=None if name is None else {"env": name},
    )


@pytest.mark.parametrize(
    ("top_k", "fields"),
    [
        (0, {"loss": "reverse_kl"}),
        (4, {"loss": "distillation", "distill_rest": "bucket"}),
        (4, {"loss": "jsd", "distill_rest": "bucket"}),
        (4, {"loss": "distillation", "distill_rest": "bucket", "distill_temperature": 2.0}),
        (4, {"loss": "reinforce", "advantage": "raw", "reward_scale": 0.0, "distill_coef": 1.0,
             "distill_loss": "reverse_kl"}),
        (4, {"loss": "reinforce", "advantage": "raw", "reward_scale": 0.0, "distill_coef": 1.0,
             "distill_rest": "bucket"}),
    ],
)  # fmt: skip
def test_a_teacher_that_equals_the_policy_changes_nothing(model, top_k, fields):
    """Float32: the gradient of a step on a teacher a nat away is 0.01 to 0.1."""
    learner = learner_of(model, **fields)
    equal = learner.step([taught_group(learner.policy, top_k)])
    assert abs(equal["loss"]) < 1e-6 and equal["grad_norm"] < 1e-5
    apart = learner.step([taught_group(learner.policy, top_k, shift=-1.0)])
    assert apart["grad_norm"] > 0.01


def test_the_rounding_of_the_sampler_is_no_signal(model):
    """The sampler is up to 0.1 nats off, as an engine in bfloat16 is; the teacher is the policy."""
    learner = learner_of(model, loss="reverse_kl")
    told = learner.step([taught_group(learner.policy, 0, noise=0.1)])
    assert told["importance_kl"] > 1e-4
    assert abs(told["distill_kl"]) < 1e-6 and told["grad_norm"] < 1e-5


def test_each_environment_has_its_divergence_and_temperature(model):
    """A mixed batch scores candidates at both temperatures; each part as if it were alone."""
    own = {
        "a": {"loss": "distillation", "distill_temperature": 2.0},
        "b": {"loss": "jsd", "distill_rest": "bucket"},
        "c": {"loss": "reverse_kl"},
    }
    mixed = learner_of(model, algorithms=own)
    groups = [taught_group(mixed.policy, 3, name, shift=-0.5) for name in own]
    told = mixed.step(groups)
    for name, (metric, group) in zip(
        own, zip(("distill_kl", "distill_jsd", "distill_kl"), groups)
    ):
        alone = learner_of(model, **own[name]).step([group])
        assert told[f"{metric}/{name}"] == pytest.approx(alone[metric], abs=1e-6)
        assert told[f"loss/{name}"] == pytest.approx(alone["loss"], abs=1e-6)


def test_each_environment_has_its_reference_model(model, tmp_path):
    names = [str(write_tiny_model(tmp_path / n, seed=s, hidden_size=32)) for n, s in
             (("x", 3), ("y", 4))]  # fmt: skip
    kl = {"kl_coef": 1.0, "kl_estimator": "k2"}
    own = {"a": {**kl, "reference_model": names[0]}, "b": {**kl, "reference_model": names[1]},
           "c": {}}  # fmt: skip
    learner = learner_of(model, algorithms=own)
    assert list(learner.models.references) == names
    told = learner.step([taught_group(learner.policy, 0, name) for name in own])
    for name, reference in zip("ab", names):
        group = taught_group(learner_of(model).policy, 0)
        alone = learner_of(model, algorithms={"a": {**kl, "reference_model": reference}})
        group.metadata = {"env": "a"}
        expected = alone.step([group])["kl_reference/a"]
        assert told[f"kl_reference/{name}"] == pytest.approx(expected, abs=1e-6)
    assert "kl_reference/c" not in told


def test_a_reference_model_of_another_tokenizer_is_refused(model, tmp_path):
    other = write_tiny_model(tmp_path, hidden_size=32)
    char_tokenizer("xyz").save_pretrained(other)
    learner = learner_of(model)
    cfg = TrainingConfig(
        model_name=model, device="cpu", kl_coef=0.1, reference_model=str(other)
    )
    with pytest.raises(ConfigError, match="lacks .* tokens"):
        load_references(cfg, learner.policy, lambda name: loading.load_reference(cfg, name))


def test_a_token_of_the_teacher_beyond_the_vocabulary_is_refused(model):
    learner = learner_of(model, loss="distillation")
    group = taught_group(learner.policy, 2)
    group.distill_token_ids[1][3][0] = 10**6
    with pytest.raises(InvalidGroup, match="beyond the .* tokens of the policy"):
        learner.step([group])


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("distill_token_ids", -1, "token -1 of the teacher is no token"),
        ("distill_logprobs", 0.7, "0.7, which is no logprob"),
    ],
)
@pytest.mark.parametrize("loss", ["distillation", "reverse_kl"])
def test_entries_that_are_no_tokens_or_no_logprobs_are_refused(
    model, loss, field, value, problem
):
    learner = learner_of(model, loss=loss)
    group = taught_group(learner.policy, 2)
    getattr(group, field)[1][3][1] = value
    with pytest.raises(InvalidGroup, match=f"of group.*{problem}"):
        learner.step([group])


def test_entries_of_a_prompt_may_be_padded_and_a_sure_token_may_round_above_0(model):
    learner = learner_of(model, loss="reverse_kl")
    group = taught_group(learner.policy, 2)
    group.distill_token_ids[1][0], group.distill_logprobs[1][0] = [-1], [1.0]
    group.distill_logprobs[1][3][0] = 1e-4
    assert learner.step([group])["distill_share"] == 1


def test_a_run_on_a_teacher_that_no_row_has_is_refused(model):
    learner = learner_of(model, loss="reverse_kl")
    group = taught_group(learner.policy, 0)
    group.distill_token_ids = group.distill_logprobs = None
    with pytest.raises(ConfigError, match="env.teacher"):
        learner.step([group])


def test_rows_are_softened_without_a_change_of_the_callers_rows(model):
    learner = learner_of(model, loss="distillation", distill_temperature=3.0)
    cfg, policy = learner.cfg, learner.policy
    state = TrainerState("", step=0, version=0, batch_no=None)
    batch = training_rows([taught_group(policy, 2)], cfg, policy, state)
    prepared = prepare_batch(batch.rows, cfg, 0)
    learn(cfg, policy, learner.models.optimizer, prepared, state, StopSignal())
    assert {row.teacher_temperature for row in prepared.rows} == {1.0}
