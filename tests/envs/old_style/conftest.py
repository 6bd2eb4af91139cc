"""The words of a command line for old environments, and replies of different lengths."""

from __future__ import annotations

import itertools

import pytest

from atroposlib.testing.fake_inference import FakeInference


@pytest.fixture
def fake():
    # Replies of different lengths, so that every way of scoring finds a difference.
    replies = itertools.count()
    return FakeInference(reply=lambda prompt, i: "a" * (1 + next(replies) % 5))


@pytest.fixture
def words(inference_url, tokenizer_dir):
    return [
        *("--openai.base_url", inference_url, "--openai.health_check", "false"),
        *("--env.tokenizer_name", tokenizer_dir, "--env.max_failures_in_a_row", "3"),
    ]
