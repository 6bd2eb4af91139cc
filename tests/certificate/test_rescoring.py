"""Rows scored again by stored weights, with a tiny model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from atroposlib.certificate.claims import SealedRow, rows_with_claims
from atroposlib.certificate.rescoring import (
    ROUNDING_NATS,
    STATE_FILE,
    comparable_rows,
    rescore_rows,
    saved_version,
)
from atroposlib.errors import ConfigError
from atroposlib.testing.tiny import write_tiny_model
from tests.certificate.rows import sealed_group

TEMPERATURE = 0.25  # far from 1: the logits of the tiny model differ by little


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("rescoring") / "tiny")


@pytest.fixture(scope="module")
def row(model) -> SealedRow:
    """A row whose last 300 tokens have the model's logprobs at ``TEMPERATURE``."""
    tokens = np.random.default_rng(1).integers(6, 40, 303)
    logits = AutoModelForCausalLM.from_pretrained(model)(torch.tensor(tokens)[None]).logits[0]
    logprobs = (logits / TEMPERATURE).log_softmax(-1).detach().numpy()
    of_tokens = np.ones(len(tokens))
    of_tokens[3:] = logprobs[np.arange(2, 302), tokens[3:]]
    trained = np.arange(len(tokens)) >= 3
    spans = [{"start": 3, "end": len(tokens), "temperature": TEMPERATURE}]
    sealed = next(rows_with_claims(sealed_group().columns))
    return replace(
        sealed,
        tokens=tokens,
        trained=trained,
        logprobs=of_tokens,
        versions=np.where(trained, 7, -1),
        spans=spans,
    )


def test_weights_that_sampled_a_row_score_it_alike(model, row):
    [rescored] = rescore_rows(model, [row])
    assert rescored.tokens == 300 and rescored.most < 1e-4


def test_logprobs_of_another_temperature_lie_far_from_the_weights(model, row):
    warm = replace(row, spans=[{**row.spans[0], "temperature": 2.0}])
    [rescored] = rescore_rows(model, [warm])
    assert rescored.mean > ROUNDING_NATS


def test_only_rows_of_the_version_and_of_its_whole_distribution_are_compared(row):
    cut = replace(row, spans=[{**row.spans[0], "top_p": 0.9}])
    banned = replace(row, spans=[{**row.spans[0], "constraints": ["logit_bias"]}])
    unknown = [
        replace(row, versions=None),
        replace(row, spans=[]),
        replace(row, logprobs=None),
    ]
    rows = [row, cut, banned, *unknown]
    assert list(comparable_rows(rows, 7)) == [row] and not list(comparable_rows(rows, 8))


def test_the_version_of_a_model_is_in_its_directory(tmp_path):
    with pytest.raises(ConfigError, match="--weights-version"):
        saved_version(tmp_path)
    (tmp_path / STATE_FILE).write_text(json.dumps({"version": 7}))
    assert saved_version(tmp_path) == 7
    with pytest.raises(ConfigError, match="no directory of a model"):
        rescore_rows(tmp_path, [])
