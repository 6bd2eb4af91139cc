"""Settings of training on files."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from example_trainer.supervised.settings import CorpusSettings


def test_lines_per_step_are_the_product_of_batch_and_accumulation():
    settings = CorpusSettings(
        train_file="x.jsonl", batch_size=3, gradient_accumulation_steps=4
    )
    assert settings.lines_per_step == 12


def test_a_budget_below_two_tokens_is_refused():
    with pytest.raises(ValidationError, match="max_tokens_per_microbatch"):
        CorpusSettings(train_file="x.jsonl", max_tokens_per_microbatch=1)
