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


def test_a_wrong_plugin_is_refused_before_the_model_is_loaded():
    with pytest.raises(ConfigError, match="none.py: no such file"):
        Learner(TrainingConfig(model_name="/no/such", loss="none.py:loss"))


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Lerner'"):
        _ = example_trainer.Lerner
