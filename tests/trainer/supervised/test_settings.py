"""Settings of training on files."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from example_trainer.supervised.settings import (
    CorpusSettings,
    DpoConfig,
    RewardConfig,
    SftConfig,
    parse,
)


def test_lines_per_step_are_the_product_of_batch_and_accumulation():
    settings = CorpusSettings(
        train_file="x.jsonl", batch_size=3, gradient_accumulation_steps=4
    )
    assert settings.lines_per_step == 12


def test_a_budget_below_two_tokens_is_refused():
    with pytest.raises(ValidationError, match="max_tokens_per_microbatch"):
        CorpusSettings(train_file="x.jsonl", max_tokens_per_microbatch=1)


@pytest.mark.parametrize("model", [SftConfig, DpoConfig, RewardConfig])
def test_an_algorithm_per_environment_is_refused_with_its_line(model, tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("model_name: m\nalgorithms:\n  gsm8k: {loss: cispo}\n")
    with pytest.raises(SystemExit):
        parse(model, ["--config", str(path)])
    expected = f"run.yaml:3: algorithms.gsm8k.loss: {model.prog} has one loss for all lines"
    assert expected in capsys.readouterr().err
