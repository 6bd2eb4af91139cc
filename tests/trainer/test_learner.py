"""The trainer as a library: a step on groups of any origin, refused groups, a saved model."""

from __future__ import annotations

import pytest

import example_trainer
from atroposlib.errors import ConfigError, InvalidGroup
from atroposlib.testing.tiny import write_tiny_model
from atroposlib.wire import ScoredData
from example_trainer import Learner, TrainingConfig
from example_trainer.model.model_dir import read_state


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_model(tmp_path_factory.mktemp("model"), hidden_size=32))


def group(**fields):
    tokens = [[5, 6, 7], [5, 6, 8]]
    masks = [[-100, 6, 7], [-100, 6, 8]]
    logprobs = [[1.0, -4.0, -4.0]] * 2
    named = {"generation_params": {"temperature": 1.0}, **fields}
    return ScoredData(
        tokens=tokens, masks=masks, scores=[1.0, 0.0], inference_logprobs=logprobs, **named
    )


def test_a_step_trains_and_is_counted_and_the_model_is_saved(model, tmp_path):
    learner = Learner(TrainingConfig(model_name=model, device="cpu", lr=1e-2))
    first, second = learner.step([group()]), learner.step([group()])
    assert (first["step"], second["step"], second["reward_mean"]) == (1, 2, 0.5)
    assert second["pos_logp"] > first["pos_logp"] and second["sequences"] == 2
    state = read_state(str(learner.save(tmp_path / "saved")))
    assert state is not None and (state.step, state.batch_no) == (2, 2)


def test_a_group_without_logprobs_is_refused_with_its_field(model):
    learner = Learner(TrainingConfig(model_name=model, device="cpu"))
    with pytest.raises(InvalidGroup, match="inference_logprobs"):
        learner.step([ScoredData(tokens=[[5, 6]], masks=[[-100, 6]], scores=[1.0])])


NAN = float("nan")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inference_logprobs": [[1.0, NAN, -4.0], [1.0, -4.0, -4.0]]}, r"logprobs\[0\]\[1\]"),
        ({"inference_logprobs": [[1.0, -float("inf"), -4.0]] * 2}, "not a finite number"),
        ({"advantages": [[0.0, NAN, 1.0], [0.0] * 3]}, r"advantages\[0\]\[1\]"),
        ({"finish_reasons": ["stop"]}, "finish_reasons: 1 entries where 2"),
        ({"versions": [[0, 0], [0, 0, 0]]}, r"versions\[0\]: 2 entries where 3"),
        ({"masks": [[-100, 6], [-100, 6, 8]]}, r"masks\[0\]: 2 entries"),
        ({"tokens": [[5, 6, 99999], [5, 6, 8]]}, "token 99999 is beyond the"),
    ],
)
def test_a_group_that_the_api_would_refuse_is_refused_with_its_field(model, fields, message):
    learner = Learner(TrainingConfig(model_name=model, device="cpu"))
    changed = group()
    for name, value in fields.items():
        setattr(changed, name, value)
    with pytest.raises(InvalidGroup, match=message):
        learner.step([changed])


@pytest.mark.parametrize("value", [1.0, 0.7])
def test_a_reference_that_marks_a_trained_token_as_masked_is_refused(model, value):
    """As a logprob 1 would be a KL of 4 nats: e^5 - 1 - 5 by k3."""
    learner = Learner(TrainingConfig(model_name=model, device="cpu", kl_coef=0.1))
    sent = [[1.0, value, -4.0], [1.0, -4.0, -4.0]]
    with pytest.raises(
        InvalidGroup, match="ref_logprobs .* of environment maths: .* no logprob"
    ):
        learner.step([group(ref_logprobs=sent, metadata={"env": "maths"})])


def test_a_wrong_plugin_is_refused_before_the_model_is_loaded():
    with pytest.raises(ConfigError, match="none.py: no such file"):
        Learner(TrainingConfig(model_name="/no/such", loss="none.py:loss"))


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Lerner'"):
        _ = example_trainer.Lerner
