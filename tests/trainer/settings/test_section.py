"""Option names of release 0.2.0."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from example_trainer import TrainingConfig, parse_args
from example_trainer.settings.section import fill_words
from example_trainer.supervised.settings import SftConfig, parse

OLD_NAMES = [
    ["--warmup-share=0.1", "--lr-decay-share", "0.2"],
    ["warmup_share=0.1", "optim.lr_decay_share=0.2"],
]


@pytest.mark.parametrize("words", OLD_NAMES)
def test_option_names_of_release_0_2_0_are_accepted_with_one_note_each(words, capsys):
    cfg = parse_args(["--model", "m", *words])
    assert (cfg.warmup_ratio, cfg.lr_decay_ratio) == (0.1, 0.2)
    notes = capsys.readouterr().err
    assert notes.count("warmup_share is now named warmup_ratio") == 1
    assert notes.count("lr_decay_share is now named lr_decay_ratio") == 1


def test_the_last_of_an_old_and_a_new_option_name_counts(file):
    path = file("optim: {warmup_share: 0.1}\nppo_epochs: ${batch.epochs_per_batch}")
    words = ["--config", path, "--epochs-per-batch", "3", "max_tokens_per_pass=64"]
    cfg = parse_args(["--model", "m", *words, "--warmup-ratio", "0.5"])
    assert (cfg.warmup_ratio, cfg.max_tokens_per_microbatch, cfg.ppo_epochs) == (0.5, 64, 3)


def test_old_option_names_are_accepted_in_code_and_logged(caplog):
    cfg = TrainingConfig(model_name="m", epochs_per_batch=2)
    assert cfg.ppo_epochs == 2
    assert caplog.messages == ["epochs_per_batch is now named ppo_epochs"]
    with pytest.raises(ValidationError, match="old name of ppo_epochs"):
        TrainingConfig(model_name="m", epochs_per_batch=2, ppo_epochs=3)


def test_training_on_files_accepts_old_option_names(file):
    words = ["--model", "m", "--train-file", "t", "--config", file("warmup_share: 0.1")]
    cfg = parse(SftConfig, [*words, "--max-tokens-per-pass", "64"])
    assert (cfg.warmup_ratio, cfg.max_tokens_per_microbatch) == (0.1, 64)


def test_a_command_gets_values_in_its_placeholders_and_keeps_other_braces():
    words = ["eval", "{url}/v1", '{"step": {step}}', "{other}"]
    assert fill_words(words, url="http://a", step=3) == [
        "eval",
        "http://a/v1",
        '{"step": 3}',
        "{other}",
    ]
