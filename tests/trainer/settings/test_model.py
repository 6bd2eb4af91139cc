"""Layer indices, compute dtype."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from example_trainer import TrainingConfig
from example_trainer.settings.config import parse_layers


def test_dtype_and_tolerance_follow_the_device():
    cpu = TrainingConfig(model_name="m", device="cpu")
    cuda = TrainingConfig(model_name="m", device="cuda:1")
    assert (cpu.compute_dtype, cpu.logprob_tolerance) == ("float32", 1e-3)
    assert (cuda.compute_dtype, cuda.logprob_tolerance) == ("bfloat16", 0.2)
    chosen = TrainingConfig(model_name="m", device="cuda", dtype="float32")
    assert chosen.compute_dtype == "float32"


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("20-22", [20, 21, 22]),
        ("0-1,28-29", [0, 1, 28, 29]),
        ("0,5,7", [0, 5, 7]),
        (" 3 ", [3]),
    ],
)
def test_layer_indices(text, layers):
    assert parse_layers(text) == layers


@pytest.mark.parametrize("text", ["", "5-3", "a", "1,,2"])
def test_invalid_layer_indices_are_rejected(text):
    with pytest.raises(ConfigError, match="0-3,28-31"):
        parse_layers(text)
