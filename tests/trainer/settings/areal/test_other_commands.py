"""Files of AReaL that another command runs are refused with that command, ready to copy."""

from __future__ import annotations

import shlex

import pytest

from example_trainer.settings.areal.other_commands import (
    kind_of,
    plain_values,
    sentence_of_evaluation,
    sentence_of_pairs,
    trains,
)
from example_trainer.supervised.settings import DpoConfig, RewardConfig, parse

PAIRS = {
    "actor.path": "some/model",
    "actor.optimizer.lr": 2e-6,
    "actor.beta": 0.2,
    "actor.loss_type": "ipo",
    "ref.path": "${actor.path}",
    "train_dataset.path": "my pairs.jsonl",
    "train_dataset.batch_size": 16,
    "train_dataset.max_length": 900,
    "valid_dataset.path": "${train_dataset.path}",
    "total_train_epochs": 2,
    "saver.freq_steps": None,
    "cluster.fileroot": "???",
}


def settings_of(kind, model):
    """The settings that the command of the sentence makes."""
    sentence = sentence_of_pairs(kind, PAIRS)
    assert sentence.startswith(f"train_dataset.type {kind}: ") and "a pair a line" in sentence
    return parse(model, shlex.split(sentence.partition(" by atropos train ")[2])[1:])


def test_the_command_for_preferences_has_the_values_of_the_file():
    cfg = settings_of("dpo", DpoConfig)
    assert (cfg.model_name, cfg.lr, cfg.beta, cfg.preference_loss) == (
        "some/model",
        2e-6,
        0.2,
        "ipo",
    )
    assert (cfg.reference_model, cfg.seq_len, cfg.epochs) == ("some/model", 900, 2)
    assert (cfg.train_file, cfg.valid_file) == ("my pairs.jsonl", "my pairs.jsonl")
    assert (cfg.lines_per_step, cfg.checkpoint_interval) == (16, 0)


def test_the_command_for_a_reward_model_has_the_values_of_the_file():
    cfg = settings_of("rw", RewardConfig)
    assert (cfg.model_name, cfg.train_file, cfg.lines_per_step) == (
        "some/model",
        "my pairs.jsonl",
        16,
    )


def test_what_the_file_lacks_is_a_word_to_replace():
    assert "--model-name MODEL --train-file FILE.jsonl" in sentence_of_pairs("dpo", {})
    assert sentence_of_pairs("rl", {}) is None and sentence_of_pairs(None, {}) is None


def test_a_beta_of_the_actor_is_preference_training():
    assert kind_of({"actor.beta": 0.1, "train_dataset.type": "rl"}) == "dpo"
    assert kind_of({"actor.beta": None}) is None


def test_open_values_and_references_to_nothing_are_left_out():
    given = {"a": "${b}", "b": 1, "c": "${d}", "e": "x/${b}", "f": "???", "g": None, "h": ""}
    assert plain_values(given) == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"actor.path": "m"}, True),
        ({"model.path": "m"}, True),
        ({"gconfig.n_samples": 1}, False),
        ({"actor.path": "m", "allocation_mode": "sglang:d4+eval"}, False),
        ({"actor.path": "m", "allocation_mode": "sglang:d4+d4"}, True),
    ],
)
def test_a_file_trains_if_it_has_a_model_and_ranks(options, expected):
    assert trains(options) is expected


def test_an_evaluation_names_server_and_command():
    sentence = sentence_of_evaluation({"sglang.model_path": "a/b"}, "gsm8k")
    assert "atropos infer --model a/b --port 9001" in sentence
    assert "atropos eval gsm8k --openai.base_url http://127.0.0.1:9001/v1" in sentence
    assert "atropos eval ENV" in sentence_of_evaluation({}, None)
