"""Tests of captured random numbers."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from atroposlib.errors import CheckpointError
from example_trainer.checkpoint.random_state import capture_rng, restore_rng


def draw():
    return random.random(), torch.rand(3).tolist(), np.random.rand(2).tolist()


def test_every_generator_draws_the_same_again_after_json():
    state = json.loads(json.dumps(capture_rng()))
    drawn = draw()
    assert draw() != drawn
    restore_rng(state)
    assert draw() == drawn


def test_another_document_is_refused():
    with pytest.raises(CheckpointError, match="no state of random numbers"):
        restore_rng({"python": [3, [1], None]})
